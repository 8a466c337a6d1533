"""What the build wants of macOS besides what ziglang has: declarations, and names to link with.

ziglang has the C and Objective-C headers and libSystem. Apple's frameworks are not in it, so here
are the few declarations that Metal's C++ interface wants of them, and text-based stubs (.tbd): a
linker reads from them which library has a symbol. A symbol that is in no stub stays undefined, and
that is an error.
"""

from pathlib import Path

HEADERS = {
    "CoreFoundation/CoreFoundation.h": "typedef double CFTimeInterval;",
    "IOSurface/IOSurfaceRef.h": "typedef struct __IOSurface* IOSurfaceRef;",
}

# What MLX's own build says that its users link with. Foundation passes on libobjc's symbols.
FRAMEWORKS = ("Metal", "Foundation", "QuartzCore", "Accelerate")
OBJC = "/usr/lib/libobjc.A.dylib"
OBJC_SYMBOLS = ["_objc_msgSend", "_sel_registerName", "_objc_lookUpClass", "_objc_getProtocol"]

# No library: on a Mac these names stay open until the interpreter loads the module.
INTERPRETER = "the Python interpreter"


def write_system(folder: Path, interpreter_symbols: list[str]) -> None:
    """Writes the headers and stubs: usr/include, usr/lib and System/Library/Frameworks."""
    for name, text in HEADERS.items():
        write(folder / "usr/include" / name, f"#pragma once\n{text}\n")
    write(folder / "usr/lib/libobjc.A.tbd", stub(OBJC, OBJC_SYMBOLS))
    write(folder / "usr/lib/libinterpreter.tbd", stub(INTERPRETER, interpreter_symbols))
    for name in FRAMEWORKS:
        bundle = f"System/Library/Frameworks/{name}.framework"
        passed_on = OBJC if name == "Foundation" else None
        text = stub(f"/{bundle}/Versions/A/{name}", [], passed_on)
        write(folder / bundle / f"{name}.tbd", text)


def write(file: Path, text: str) -> None:
    """Writes a file, and the folders above it. One that is the same is not touched."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


def stub(library: str, symbols: list[str], passed_on: str | None = None) -> str:
    """A library for the linker (text-based stub, version 4): its path, symbols and re-exports."""
    targets = "targets: [ arm64-macos ]"
    lines = ["--- !tapi-tbd", "tbd-version: 4", targets, f"install-name: '{library}'"]
    if passed_on:
        lines += ["reexported-libraries:", f"  - {targets}", f"    libraries: [ '{passed_on}' ]"]
    if symbols:
        lines += ["exports:", f"  - {targets}", f"    symbols: [ {', '.join(symbols)} ]"]
    return "\n".join([*lines, "...", ""])


def interpreter_symbols(nanobind: Path) -> list[str]:
    """The names that nanobind tells a Mac's linker to leave open: those of Python's C interface.

    nanobind: its folder `cmake`, in which darwin-ld-cpython.sym has a line `-U name` for each.
    """
    lines = (nanobind / "darwin-ld-cpython.sym").read_text().splitlines()
    return [line.split()[1] for line in lines if line.startswith("-U ")]
