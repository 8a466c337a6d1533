"""Headers and linker stubs of macOS frameworks that ziglang lacks.

ziglang has the C and Objective-C headers and libSystem, but not Apple's frameworks. This module
writes the few declarations that Metal's C++ interface needs, and text-based stubs (.tbd), which
map symbols to libraries for the linker. A symbol without a stub is undefined, which is an error.
"""

from pathlib import Path

HEADERS = {
    "CoreFoundation/CoreFoundation.h": "typedef double CFTimeInterval;",
    "IOSurface/IOSurfaceRef.h": "typedef struct __IOSurface* IOSurfaceRef;",
}

# Link dependencies that MLX's CMake package exports. Foundation re-exports libobjc's symbols.
FRAMEWORKS = ("Metal", "Foundation", "QuartzCore", "Accelerate")
OBJC = "/usr/lib/libobjc.A.dylib"
OBJC_SYMBOLS = ["_objc_msgSend", "_sel_registerName", "_objc_lookUpClass", "_objc_getProtocol"]

# Library name in the stub of Python's C API, which on a Mac the running interpreter defines.
INTERPRETER = "the Python interpreter"


def write_system(folder: Path, interpreter_symbols: list[str]) -> None:
    """Writes the headers and stubs: usr/include, usr/lib and System/Library/Frameworks."""
    for name, text in HEADERS.items():
        write(folder / "usr/include" / name, f"#pragma once\n{text}\n")
    write(folder / "usr/lib/libobjc.A.tbd", stub(OBJC, OBJC_SYMBOLS))
    write(folder / "usr/lib/libinterpreter.tbd", stub(INTERPRETER, interpreter_symbols))
    for name in FRAMEWORKS:
        bundle = f"System/Library/Frameworks/{name}.framework"
        reexported = OBJC if name == "Foundation" else None
        text = stub(f"/{bundle}/Versions/A/{name}", [], reexported)
        write(folder / bundle / f"{name}.tbd", text)


def write(file: Path, text: str) -> None:
    """Writes a file and its parent folders; an identical file keeps its mtime."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


def stub(library: str, symbols: list[str], reexported: str | None = None) -> str:
    """Text-based stub (version 4) of a library: path, symbols and re-exports."""
    targets = "targets: [ arm64-macos ]"
    lines = ["--- !tapi-tbd", "tbd-version: 4", targets, f"install-name: '{library}'"]
    if reexported:
        lines += ["reexported-libraries:", f"  - {targets}", f"    libraries: [ '{reexported}' ]"]
    if symbols:
        lines += ["exports:", f"  - {targets}", f"    symbols: [ {', '.join(symbols)} ]"]
    return "\n".join([*lines, "...", ""])


def interpreter_symbols(nanobind: Path) -> list[str]:
    """Symbols of Python's C API, from nanobind's darwin-ld-cpython.sym."""
    lines = (nanobind / "darwin-ld-cpython.sym").read_text().splitlines()
    return [line.split()[1] for line in lines if line.startswith("-U ")]
