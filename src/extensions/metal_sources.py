"""Writes the Metal kernels into the extension: each .metal file as one text, headers inlined.

    python metal_sources.py metal_sources.cpp common/*.metal src/*/*.metal

A Mac compiles such a text when one of its kernels is first used (common/metal_device.cpp), so
neither Xcode nor a Metal compiler is needed to build the extension. `#line` names the file and the
line that a compiler's message is about.
"""

import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'\s*#include "(?P<header>[^"]+)"')


def inlined(file: Path, seen: set[Path]) -> str:
    """A file's text with our headers in it, each once; `<metal_stdlib>` is left to the compiler."""
    seen.add(file)
    name = f"src/extensions/{file.as_posix()}"
    lines = [f'#line 1 "{name}"']
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        include = INCLUDE.match(line)
        if include is None:
            # Of a header that is part of a text the compiler would say that it is not a header.
            lines.append("" if line.strip() == "#pragma once" else line)
            continue
        header = Path(include["header"])
        if header not in seen:
            lines += [inlined(header, seen), f'#line {number + 1} "{name}"']
        else:
            lines.append("")
    return "\n".join(lines)


def main(out: Path, kernels: list[Path]) -> None:
    """Writes `out`; paths are relative to the folder of the extension, which is the current one."""
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
