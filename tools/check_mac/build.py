"""Builds a CMake project for macOS on Apple Silicon, with ziglang."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from .system import interpreter_symbols, write, write_system
from .wheel import MACOS

TOOLCHAIN = """\
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_OSX_SYSROOT "{system}")
set(CMAKE_CXX_COMPILER "{zig}" c++ -target aarch64-macos.{macos})
set(CMAKE_AR "{work}/bin/ar")
set(CMAKE_RANLIB "{work}/bin/ranlib")
set(CMAKE_CXX_LINKER_LAUNCHER "{python}" "{link}")
set(CMAKE_CXX_FLAGS_INIT "-isystem \\"{system}/usr/include\\"")
set(CMAKE_MODULE_LINKER_FLAGS_INIT
    "-F\\"{system}/System/Library/Frameworks\\" -L\\"{system}/usr/lib\\" -linterpreter")
# Tests the compiler without linking: ziglang compiles its C++ library at the first link.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
"""
# ziglang prints this warning for each file, about a library folder of the machine that built MLX.
IGNORED_WARNING = "warning: unable to open library directory"


def build(source: Path, work: Path, wheel: Path) -> tuple[Path | None, str]:
    """Compiles and links the module `_ext` of the CMakeLists.txt in `source`.

    `work` is the folder for objects, system stubs and the module; `wheel` is the unpacked package
    `mlx` of the macOS wheel. Returns the module, or None on failure, and the build's output.
    """
    write_toolchain(work)
    objects = work / "objects"
    # Deletes CMake's cache, which may contain paths of another MLX or Python version. Object files
    # are reused.
    (objects / "CMakeCache.txt").unlink(missing_ok=True)
    configure = ["cmake", "-G", "Ninja", "-S", str(source), "-B", str(objects)]
    configure += [f"-DCMAKE_TOOLCHAIN_FILE={work / 'toolchain.cmake'}"]
    configure += [
        f"-DMLX_ROOT={wheel / 'share/cmake/MLX'}",
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-DPython_INCLUDE_DIR={python_headers(work)}",
    ]
    tag = f"cpython-{sys.version_info.major}{sys.version_info.minor}-darwin"
    configure += [f"-DSKBUILD_SOABI={tag}", "-DTINY_LLM_UNITY=ON"]
    configure += ["-DCMAKE_COMPILE_WARNING_AS_ERROR=ON"]
    # The module is not run, so -O1 suffices. The kernels keep -O3, on which some warnings depend.
    configure += ["-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"]
    output = ""
    # Prefers CMake and Ninja of this Python environment to others on PATH.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    for command in (configure, ["ninja", "-C", str(objects), "-k", "0", "_ext"]):
        run = subprocess.run(
            command,
            check=False,
            env={**os.environ, "PATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines = run.stdout.splitlines()
        output = "\n".join(line for line in lines if not line.startswith(IGNORED_WARNING))
        if run.returncode != 0:
            return None, output
    return objects / f"_ext.{tag}.so", output


def write_toolchain(work: Path) -> None:
    """Writes CMake's toolchain file, wrappers of ziglang's archiver, and the system stubs."""
    zig = package("ziglang") / "zig"
    write_system(work / "system", interpreter_symbols(package("nanobind") / "cmake"))
    for tool in ("ar", "ranlib"):
        script = work / "bin" / tool
        write(script, f'#!/bin/sh\nexec "{zig}" {tool} "$@"\n')
        script.chmod(0o755)
    text = TOOLCHAIN.format(
        work=work,
        system=work / "system",
        zig=zig,
        macos=MACOS,
        python=sys.executable,
        link=Path(__file__).with_name("link.py"),
    )
    write(work / "toolchain.cmake", text)


def python_headers(work: Path) -> Path:
    """Folder of Python.h.

    Debian's pyconfig.h includes one header per processor and rejects macOS. In that case, returns a
    copy of the headers with this machine's pyconfig.h, which suits macOS because both are 64-bit.
    """
    installed = Path(sysconfig.get_path("include"))
    architecture = sysconfig.get_config_var("MULTIARCH") or ""
    chosen = installed.parent / architecture / installed.name / "pyconfig.h"
    if not architecture or not chosen.exists():
        return installed
    folder = work / "python"
    for file in installed.rglob("*.h"):
        source = chosen if file.name == "pyconfig.h" else file
        write(folder / file.relative_to(installed), source.read_text(encoding="utf-8"))
    return folder


def package(name: str) -> Path:
    """Folder of an installed package."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent
