"""`pdm run compile-metal`: compiles each Metal file with Xcode's compiler.

    python3 -m tools.compile_metal --std metal3.2

Requires none of the project's dependencies. Files are compiled as embedded in the extension, with
the project's headers inlined; messages refer to the original files and lines. Without Xcode,
`pdm run check-installation` has the GPU driver compile the kernels.
"""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

EXTENSION = Path(__file__).resolve().parent.parent / "src" / "extensions"
# Language versions that MLX uses on macOS 14 and macOS 15.
VERSIONS = ["metal3.1", "metal3.2"]
METAL = ["xcrun", "--sdk", "macosx", "metal"]


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 if all files compile; 1 if one fails; 2 without a compiler."""
    parser = argparse.ArgumentParser(
        prog="compile-metal",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "--std", action="append", metavar="VERSION", help=f"default: {' and '.join(VERSIONS)}"
    )
    versions = parser.parse_args(argv).std or VERSIONS
    missing = missing_compiler_message()
    if missing:
        print(f"compile-metal: {missing}", file=sys.stderr)
        return 2
    with in_folder(EXTENSION), tempfile.TemporaryDirectory() as folder:
        files = sorted([*Path("common").glob("*.metal"), *Path("src").glob("*/*.metal")])
        texts = [write_text(file, Path(folder)) for file in files]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            results = list(pool.map(lambda text: compile_text(text, versions), texts))
    failed = 0
    for file, messages in zip(files, results, strict=True):
        failed += bool(messages)
        print(f"{'FAIL' if messages else 'ok  '} src/extensions/{file}")
        for version, message in messages.items():
            print(f"  in {version}:\n{message}")
    print(f"{len(files) - failed} of {len(files)} files compile in {', '.join(versions)}")
    return 1 if failed else 0


def missing_compiler_message() -> str | None:
    """Error message if Metal's compiler is missing, else None."""
    if shutil.which("xcrun") is None:
        return "Apple's compiler runs on a Mac; elsewhere `pdm run metal-check` checks the kernels."
    found = subprocess.run([*METAL, "--version"], check=False, capture_output=True, text=True)
    if found.returncode != 0:
        return (
            "this Mac has no `metal` compiler. It comes with Xcode, and from Xcode 26 on "
            "with `xcodebuild -downloadComponent MetalToolchain`. `pdm run check-installation` "
            "needs neither: it has the driver compile the kernels."
        )
    return None


@contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    """Changes the working directory, because header paths in the sources are relative to it."""
    previous = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(previous)


def write_text(file: Path, folder: Path) -> Path:
    """Writes a Metal file, with the project's headers inlined, to a folder; returns the path."""
    spec = importlib.util.spec_from_file_location("metal_sources", EXTENSION / "metal_sources.py")
    assert spec is not None
    assert spec.loader is not None
    metal_sources = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(metal_sources)
    text = folder / file.name
    text.write_text(metal_sources.inlined(file, set()), encoding="utf-8")
    return text


def compile_text(text: Path, versions: list[str]) -> dict[str, str]:
    """Compiler errors by language version; empty on success."""
    messages = {}
    for version in versions:
        command = [*METAL, f"-std={version}", "-c", str(text), "-o", os.devnull]
        result = subprocess.run(command, check=False, capture_output=True, text=True)
        if result.returncode != 0:
            messages[version] = result.stderr.rstrip()
    return messages


if __name__ == "__main__":
    sys.exit(main())
