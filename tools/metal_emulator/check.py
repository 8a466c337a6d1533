"""`pdm run metal-check`: type-checks the extension's Metal files with clang.

pdm run metal-check                  all files of src/extensions
pdm run metal-check my_kernel.metal  the given files or folders
"""

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import compiler
from .errors import Diagnostic, MetalError, ToolMissingError
from .toolchain import clang

ROOT = Path(__file__).resolve().parent.parent.parent
KERNELS = ROOT / "src" / "extensions"


def include_dirs() -> list[Path]:
    """Include folders for the extension's kernels: the extension's and those of MLX's wheel."""
    folders = [KERNELS, KERNELS / "src"]
    try:
        import mlx
    except ImportError:
        return folders
    return folders + [Path(folder) / "include" for folder in mlx.__path__]


def kernel_files(paths: list[Path]) -> list[Path]:
    """The .metal files among and below the paths."""
    files = []
    for path in paths:
        files += sorted(path.rglob("*.metal")) if path.is_dir() else [path]
    return files


def check_file(path: Path) -> tuple[int, list[Diagnostic], bool]:
    """Returns (number of kernels, errors or warnings, whether the file is correct)."""
    try:
        source = compiler.prepare(path, include_dirs(), {}, {})
        return len(source.kernels), compiler.check(source), True
    except MetalError as error:
        return 0, error.diagnostics, False


def main() -> int:
    """Exit status: 0 if all files are correct; 1 if not; 2 if checks cannot run."""
    parser = argparse.ArgumentParser(
        prog="metal-check", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders")
    args = parser.parse_args()
    for path in args.paths:
        if not path.exists():
            parser.error(f"{path} does not exist")
    try:
        clang()
    except ToolMissingError as error:
        print(f"metal-check: {error}", file=sys.stderr)
        return 2
    files = kernel_files(args.paths or [KERNELS])
    if not files:
        print("metal-check: no .metal files found", file=sys.stderr)
        return 2
    failures = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for path, (count, findings, right) in zip(files, pool.map(check_file, files), strict=True):
            name = path.resolve().relative_to(ROOT) if path.resolve().is_relative_to(ROOT) else path
            kernels = f"{count} kernel{'' if count == 1 else 's'}" if right else "not valid Metal"
            print(f"{'ok  ' if right else 'FAIL'} {name}: {kernels}")
            for finding in findings:
                print(f"  {finding}")
            failures += not right
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
