"""`pdm run check-mac`: cross-compiles the extension for Apple Silicon.

Runs the extension's CMakeLists.txt with a cross-compiler (the package ziglang), nanobind, and the
headers and libmlx.dylib of MLX's macOS wheel. This compiles the Mac-only files: the GPU launch code
and the NEON kernels. Warnings are errors, as are symbols not defined by MLX, macOS or the Python
interpreter. The module is inspected (module.py), not run. Compiler, linker and C++ library
are ziglang's, not Apple's; Python's headers are those of the running interpreter.

The first run downloads MLX's macOS wheel from the Python package index. If the index is
unreachable, the check is skipped.
"""

import argparse
import importlib.util
import sys
import time
from pathlib import Path

from .build import build
from .module import compare_with_objects, describe, find_defects
from .wheel import macos_wheel

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "check-mac"


def main() -> int:
    """Exit status: 0 if the module is correct or the check was skipped; 1 otherwise."""
    argparse.ArgumentParser(
        prog="check-mac", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    ).parse_args()
    if sys.platform == "darwin":
        return skip("this is a Mac; `pdm run build-ext` builds the extension")
    if importlib.util.find_spec("ziglang") is None:
        return skip("the package ziglang is not installed; `./pdmw run check-mac` installs it")
    wheel = macos_wheel(WORK)
    if wheel is None:
        return skip("MLX's macOS wheel could not be downloaded")
    started = time.monotonic()
    module, output = build(ROOT / "src" / "extensions", WORK, wheel)
    if module is None:
        print(f"{output}\ncheck-mac: the extension does not build for macOS; see above.")
        return 1
    kernels = WORK / "objects" / "CMakeFiles" / "kernels_neon.dir"
    problems = find_defects(module) + compare_with_objects(module, sorted(kernels.rglob("*.o")))
    for problem in problems:
        print(f"check-mac: {problem}")
    if not problems:
        print(f"{describe(module)}\nbuilt in {time.monotonic() - started:.0f} s; not run")
    return 1 if problems else 0


def skip(reason: str) -> int:
    """Prints the reason for skipping the check; returns exit status 0."""
    print(f"check-mac: skipped: {reason}.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
