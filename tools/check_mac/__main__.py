"""`pdm run check-mac`: compiles and links the whole extension for Apple Silicon, on Linux.

    pdm run check-mac

The extension's own CMakeLists.txt is run with a cross-compiler (the package ziglang), against the
headers and the libmlx.dylib of MLX's macOS wheel and with nanobind, so the files that only a Mac
compiles are compiled here: the code that starts kernels on the GPU, and the kernels for NEON. A
warning is an error, and so is a symbol that neither MLX, the system nor the Python interpreter
has. The module that comes out is then looked at: see module.py. It is not run.

What it needs comes from the Python package index, once. Where that cannot be reached, the check
says that it was skipped, and why.

What it cannot say: whether Apple's own compiler, linker and C++ library agree (clang and libc++
here are ziglang's; the C++ library is linked into the module), and anything that happens when the
module runs. Python's headers are those of the Python that runs this.
"""

import argparse
import importlib.util
import sys
import time
from pathlib import Path

from .build import build
from .module import compare_with_objects, describe, examine
from .wheel import macos_wheel

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "check-mac"


def main() -> int:
    """Exit status 0 if the module is as a Mac needs it, or cannot be built here; 1 if it is not."""
    argparse.ArgumentParser(
        prog="check-mac", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    ).parse_args()
    if sys.platform == "darwin":
        return skip("this is a Mac, where `pdm run build-ext` builds the extension itself")
    if importlib.util.find_spec("ziglang") is None:
        return skip("the package ziglang is not installed; `./pdmw run check-mac` installs it")
    wheel = macos_wheel(WORK)
    if wheel is None:
        return skip("MLX's macOS wheel could not be downloaded")
    begun = time.monotonic()
    module, output = build(ROOT / "src" / "extensions", WORK, wheel)
    if module is None:
        print(f"{output}\ncheck-mac: the extension does not build for a Mac; see above.")
        return 1
    kernels = WORK / "objects" / "CMakeFiles" / "kernels_neon.dir"
    problems = examine(module) + compare_with_objects(module, sorted(kernels.rglob("*.o")))
    for problem in problems:
        print(f"check-mac: {problem}")
    if not problems:
        print(f"{describe(module)}\nbuilt in {time.monotonic() - begun:.0f} s; not run")
    return 1 if problems else 0


def skip(reason: str) -> int:
    """Says why nothing was checked."""
    print(f"check-mac: skipped, as {reason}.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
