"""Docstrings of the bindings, generated from the operations' headers.

    python docstrings.py docstrings.h src/*/*.h

The contract of a C++ function that returns arrays is its `///` comment. It becomes a string
constant in the namespace `docs`; for overloads, the first comment is used.
"""

import re
import sys
from pathlib import Path

CONTRACT = re.compile(
    r"^(?P<comment>(?:///.*\n)+)"
    r"(?:mx::array|std::vector<mx::array>|std::pair<mx::array, mx::array>) "
    r"(?P<name>\w+)\((?P<arguments>[^;]*)\);",
    re.MULTILINE,
)
STREAM = "stream: stream or device; MLX's default if None."


def contracts(header: Path) -> dict[str, str]:
    """Contracts of a header (path relative to src/extensions) by function name."""
    docstrings: dict[str, str] = {}
    for match in CONTRACT.finditer(header.read_text(encoding="utf-8")):
        text = re.sub(r"^/// ?", "", match["comment"], flags=re.MULTILINE).strip()
        text = re.sub(r"Throws\s+std::invalid_argument", "Raises ValueError", text)
        if "StreamOrDevice" in match["arguments"]:
            text += f"\n\n{STREAM}"
        docstrings.setdefault(match["name"], f"{text}\nMore: src/extensions/{header.as_posix()}\n")
    return docstrings


def main(out: Path, headers: list[Path]) -> None:
    """Writes the doc comments of `headers` to `out`, a C++ header of string constants."""
    constants = [
        f'constexpr const char* {name} = R"doc({text})doc";'
        for header in headers
        for name, text in contracts(header).items()
    ]
    body = "\n\n".join(constants)
    out.write_text(
        f"#pragma once\n\nnamespace tiny_llm_ext::docs {{\n\n{body}\n\n}}\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
