"""Writes the docstrings of the bindings: the contracts of the operations, from their headers.

    python docstrings.py docstrings.h src/*/*.h

A contract is the comment of three slashes in front of a function that returns arrays. It becomes a
constant of that function's name in the namespace `docs`; of overloads, the first one's.
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
STREAM = "stream: where to compute; MLX's default if there is none."


def contracts(header: Path) -> dict[str, str]:
    """The contracts of a header: name of the function -> docstring."""
    found: dict[str, str] = {}
    for match in CONTRACT.finditer(header.read_text(encoding="utf-8")):
        text = re.sub(r"^/// ?", "", match["comment"], flags=re.MULTILINE).strip()
        text = re.sub(r"Throws\s+std::invalid_argument", "Raises ValueError", text)
        if "StreamOrDevice" in match["arguments"]:
            text += f"\n\n{STREAM}"
        found.setdefault(match["name"], f"{text}\nMore: src/extensions/{header.as_posix()}\n")
    return found


def main(out: Path, headers: list[Path]) -> None:
    """Writes `out`; the paths of the headers are shown as they are given."""
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
