"""Preprocesses a .metal file to flat text with line markers."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import Diagnostic, MetalError
from .toolchain import clang

# Metal's standard headers. The preprocessor includes msl/macros.h for each; the declarations are in
# msl/metal.h, which is compiled before the preprocessed text.
STANDARD_HEADERS = [
    *("array", "atomic", "common", "compute", "geometric", "integer", "limits", "logging", "math"),
    *("matrix", "numeric", "pack", "packing", "quadgroup", "relational", "simdgroup"),
    *("simdgroup_matrix", "stdlib", "texture", "type_traits", "types", "uniform"),
]

DEFINITIONS = ["__METAL__=1", "__METAL_VERSION__=320", "__METAL_MACOS__=1", "__clang__=1"]


def preprocess(
    path: Path, include_dirs: Sequence[Path], defines: Mapping[str, object], build: Path
) -> str:
    """Preprocessed text of a .metal file; raises `MetalError` for invalid input."""
    command = [clang(), "-E", "-x", "c++", "-std=c++20", "-nostdinc", "-undef", "-Wno-everything"]
    command += [f"-D{definition}" for definition in DEFINITIONS]
    command += [f"-D{name}={value}" for name, value in defines.items()]
    command += [f"-I{folder}" for folder in (_header_folder(build), *include_dirs)]
    result = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        found = re.findall(
            r"^(.*?):(\d+):\d+: (?:fatal )?error: (.*)$", result.stderr, re.MULTILINE
        )
        diagnostics = [Diagnostic(file, int(line), message) for file, line, message in found]
        raise MetalError(diagnostics or [Diagnostic(str(path), 0, result.stderr.strip())])
    return result.stdout


def _header_folder(build: Path) -> Path:
    """Folder with files named like Metal's standard headers, which only include msl/macros.h."""
    folder = build / "include"
    content = f'#include "{Path(__file__).parent / "msl" / "macros.h"}"\n'
    for name in STANDARD_HEADERS:
        header = folder / f"metal_{name}"
        if not header.exists() or header.read_text() != content:
            folder.mkdir(parents=True, exist_ok=True)
            header.write_text(content)
    return folder
