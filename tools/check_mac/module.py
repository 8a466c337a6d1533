"""Inspects a linked Mach-O module: requirements for loading it on a Mac.

Apple documents the format in <mach-o/loader.h> and <mach-o/nlist.h>; macholib reads it.
"""

from pathlib import Path

from macholib.MachO import MachO
from macholib.SymbolTable import SymbolTable

from .system import INTERPRETER

ARM64 = 0x0100000C
MLX_LIBRARY = "@rpath/libmlx.dylib"
# Search path for MLX's library: the package mlx is installed next to the module's package.
RPATH = "@loader_path/../mlx/lib"
INIT_SYMBOL = "_PyInit__ext"
# Label of symbols without a library, which any loaded library may define.
ANY_LIBRARY = "anywhere"
# Flag in n_desc: a weak definition, such as an inline function.
N_WEAK_DEF = 0x80
# Mangled namespace of the NEON kernels.
NEON = "__ZN12tiny_llm_ext4neon"


def find_defects(module: Path) -> list[str]:
    """Checks architecture, libraries, search path and entry point; one sentence per defect."""
    header = MachO(str(module)).headers[0]
    problems = []
    if header.header.cputype != ARM64:
        problems.append(f"the module is for processor {header.header.cputype:#x}, not for arm64")
    if strings(module, "LC_RPATH") != [RPATH]:
        problems.append(
            f"the module searches for MLX in {strings(module, 'LC_RPATH')}, not [{RPATH}]"
        )
    libraries = strings(module, "LC_LOAD_DYLIB")
    if MLX_LIBRARY not in libraries:
        problems.append(f"the module must load {MLX_LIBRARY}, got {libraries}")
    for library in libraries:
        if not library.startswith(("/usr/lib/", "/System/")) and library not in (
            MLX_LIBRARY,
            INTERPRETER,
        ):
            problems.append(f"the module loads {library}, which macOS does not have")
    undefined = imported(module)
    problems += [f"{name} is undefined in all libraries" for name in undefined[ANY_LIBRARY]]
    if INIT_SYMBOL not in defined(module):
        problems.append(f"the module has no {INIT_SYMBOL}, which Python calls to load it")
    return problems


def compare_with_objects(module: Path, objects: list[Path]) -> list[str]:
    """Reports NEON kernels of the object files that are missing from the module."""
    names = defined(module)
    problems = []
    for file in objects:
        kernels = {name for name in defined(file) if name.startswith(NEON)}
        if not kernels:
            problems.append(f"{file.stem} has no kernel for NEON")
        for name in sorted(kernels - names):
            problems.append(f"the module lacks the NEON kernel {name} from {file.stem}")
    if not objects:
        problems.append("no file was compiled for NEON")
    return problems


def describe(module: Path) -> str:
    """Summary of the module in a few lines: kernels, and number of symbols by library."""
    kernels = sum(name.startswith(NEON) for name in defined(module))
    libraries = imported(module).items()
    sources = ", ".join(f"{len(names)} from {library}" for library, names in libraries if names)
    return (
        f"{module.name}: a module for arm64, {module.stat().st_size} bytes\n"
        f"{kernels} NEON kernels, {MLX_LIBRARY} in {RPATH}\n"
        f"symbols: {sources}"
    )


def strings(module: Path, command: str) -> list[str]:
    """Paths in the module's load commands of kind `command`."""
    return [
        data.rstrip(b"\0").decode()
        for load, _, data in MachO(str(module)).headers[0].commands
        if load.get_cmd_name() == command
    ]


def defined(file: Path) -> set[str]:
    """Exported names of a module or object file, without inline functions."""
    symbols = SymbolTable(MachO(str(file))).extdefsyms or []
    return {name.decode() for entry, name in symbols if not entry.n_desc & N_WEAK_DEF}


def imported(module: Path) -> dict[str, list[str]]:
    """Imported symbols by library; those without a library are listed under `ANY_LIBRARY`."""
    libraries = strings(module, "LC_LOAD_DYLIB")
    names: dict[str, list[str]] = {library: [] for library in [*libraries, ANY_LIBRARY]}
    for entry, name in SymbolTable(MachO(str(module))).undefsyms or []:
        # The upper byte of n_desc is the library's index in load order, from 1.
        number = (entry.n_desc >> 8) & 0xFF
        library = libraries[number - 1] if 1 <= number <= len(libraries) else ANY_LIBRARY
        names[library].append(name.decode())
    return names
