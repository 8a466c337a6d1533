"""Embeds the Metal kernels in the extension, one source per .metal file.

    python metal_sources.py metal_sources.cpp common/*.metal src/*/*.metal

The driver compiles a source on first use of one of its kernels (common/metal_library.cpp), so
building the extension needs neither Xcode nor a Metal compiler. `#line` directives keep file names
and line numbers in compiler messages.
"""

import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'\s*#include "(?P<header>[^"]+)"')


def inlined(file: Path, seen: set[Path]) -> str:
    """Source of a file with each project header inlined once; includes of `<…>` headers remain."""
    seen.add(file)
    name = f"src/extensions/{file.as_posix()}"
    lines = [f'#line 1 "{name}"']
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        include = INCLUDE.match(line)
        if include is None:
            # The result is a main file, in which the compiler would warn about `#pragma once`.
            lines.append("" if line.strip() == "#pragma once" else line)
            continue
        header = Path(include["header"])
        if header not in seen:
            lines += [inlined(header, seen), f'#line {number + 1} "{name}"']
        else:
            lines.append("")
    return "\n".join(lines)


def main(out: Path, kernels: list[Path]) -> None:
    """Writes the kernels' sources as a C++ file; must run in src/extensions."""
    entries = [
        f'    {{"{file.stem}", R"metal({inlined(file, set())}\n)metal"}},'
        for file in sorted(kernels, key=lambda file: file.stem)
    ]
    text = "\n".join(
        [
            '#include "common/metal_sources.h"',
            "",
            "namespace tiny_llm_ext::metal {",
            "",
            "const std::map<std::string, std::string>& sources() {",
            "    static const std::map<std::string, std::string> texts = {",
            *entries,
            "    };",
            "    return texts;",
            "}",
            "",
            "}  // namespace tiny_llm_ext::metal",
            "",
        ]
    )
    out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
