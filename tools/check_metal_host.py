"""`pdm run check-metal-host`: compiles, on any machine, the code that hands kernels to Apple's GPU.

    pdm run check-metal-host

That code (src/extensions/src/*/*_metal.cpp, common/metal_device.cpp and metal_library.cpp) meets
MLX's own interface to Metal on macOS only. Here clang checks it against the headers of MLX's macOS
wheel, which have Metal's C++ interface with them; of the system's own headers a few declarations
are enough. What it calls must also be exported by the wheel's libmlx.dylib, or it would not link
there. The wheel comes through pip, once; without a network the check says that it was skipped.
"""

import argparse
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTENSION = ROOT / "src" / "extensions"
WORK = ROOT / "build" / "metal-host"

# What Metal's C++ interface wants of macOS. Nothing is called: the code is compiled, never run.
SYSTEM_HEADERS = {
    "objc/runtime.h": """
        extern "C" {
        struct objc_object { struct objc_class* isa; };
        struct objc_selector;
        typedef objc_object* id;
        typedef objc_class* Class;
        typedef objc_selector* SEL;
        typedef struct objc_protocol Protocol;
        SEL sel_registerName(const char*);
        id objc_lookUpClass(const char*);
        Protocol* objc_getProtocol(const char*);
        }""",
    "objc/message.h": """
        extern "C" {
        void objc_msgSend(void);
        void objc_msgSend_fpret(void);
        void objc_msgSend_stret(void);
        }""",
    "CoreFoundation/CoreFoundation.h": "typedef double CFTimeInterval;",
    "dispatch/dispatch.h": """
        typedef struct dispatch_data* dispatch_data_t;
        typedef struct dispatch_queue* dispatch_queue_t;""",
    "mach/mach.h": "typedef int kern_return_t;\ntypedef unsigned task_id_token_t;",
    "IOSurface/IOSurfaceRef.h": "typedef struct IOSurface* IOSurfaceRef;",
    "TargetConditionals.h": "",
}


def main() -> int:
    """Exit status 0 if the code compiles and links, or cannot be checked here; 1 if it does not."""
    argparse.ArgumentParser(
        prog="check-metal-host",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    ).parse_args()
    compiler, nm = find_tool("clang++"), find_tool("llvm-nm")
    if compiler is None or nm is None:
        return skip(
            "there is no clang++ with its llvm-nm; on Debian and Ubuntu: `apt install clang`"
        )
    wheel = macos_wheel()
    if wheel is None:
        return skip("MLX's macOS wheel could not be downloaded")
    for name, text in SYSTEM_HEADERS.items():
        header = WORK / "system" / name
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text(f"#pragma once\n{text}\n")
    shared = ("metal_device", "metal_library", "gpu_metal")
    sources = [EXTENSION / "common" / f"{name}.cpp" for name in shared]
    sources += EXTENSION.glob("src/*/*_metal.cpp")
    with ThreadPoolExecutor() as pool:
        results = list(pool.map(lambda source: compile_source(compiler, wheel, source), sources))
    problems = [message for message in results if message]
    problems += not_exported(nm, wheel, sources) if not problems else []
    print("\n".join(problems) or f"{len(sources)} files compile and find what they call in MLX")
    return 1 if problems else 0


def skip(reason: str) -> int:
    """Says why nothing was checked."""
    print(f"check-metal-host: skipped, as {reason}.", file=sys.stderr)
    return 0


def find_tool(name: str) -> str | None:
    """A tool of LLVM, with or without its version in the name."""
    names = [name, *(f"{name}-{release}" for release in range(25, 15, -1))]
    return next((path for path in map(shutil.which, names) if path), None)


def macos_wheel() -> Path | None:
    """The unpacked macOS wheel of the MLX that is installed here, or None if it cannot be had."""
    folder = WORK / f"mlx-{version('mlx')}"
    if not folder.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--dest", str(WORK)]
        command += ["--platform", "macosx_14_0_arm64", "--only-binary=:all:"]
        command += ["--disable-pip-version-check", f"mlx-metal=={version('mlx')}"]
        if subprocess.run(command, check=False, capture_output=True).returncode != 0:
            return None
        (file,) = WORK.glob(f"mlx_metal-{version('mlx')}-*.whl")
        with zipfile.ZipFile(file) as wheel:
            names = [name for name in wheel.namelist() if not name.endswith(".metallib")]
            wheel.extractall(folder.with_suffix(".part"), names)
        file.unlink()
        folder.with_suffix(".part").rename(folder)
    return folder / "mlx"


def object_of(source: Path) -> Path:
    """Where a source's object file goes."""
    return WORK / f"{source.stem}.o"


def compile_source(compiler: str, wheel: Path, source: Path) -> str:
    """What the compiler has to say about a source file: nothing if it is right."""
    command = [compiler, "-std=c++20", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"]
    command += ["-fblocks", "-I", str(EXTENSION)]
    for folder in (WORK / "system", wheel / "include", wheel / "include" / "metal_cpp"):
        command += ["-isystem", str(folder)]
    command += ["-c", str(source), "-o", str(object_of(source))]
    return subprocess.run(command, check=False, capture_output=True, text=True).stderr


def symbols(nm: str, file: Path, flag: str) -> set[str]:
    """Names without arguments: the two standard libraries mangle those differently."""
    lines = subprocess.run(
        [nm, flag, "--demangle", "--just-symbol-name", str(file)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    return {line.split("(")[0].split("[")[0] for line in lines}


def not_exported(nm: str, wheel: Path, sources: list[Path]) -> list[str]:
    """What the objects need of MLX or of Metal's interface and libmlx.dylib does not export."""
    exported = symbols(nm, wheel / "lib" / "libmlx.dylib", "--extern-only")
    needed = set()
    for source in sources:
        needed |= symbols(nm, object_of(source), "--undefined-only")
    ours = ("mlx::core::", "MTL::", "NS::")
    return [
        f"{name} is not exported by libmlx.dylib"
        for name in sorted(needed - exported)
        if name.startswith(ours)
    ]


if __name__ == "__main__":
    sys.exit(main())
