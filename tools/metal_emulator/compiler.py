"""Compiles rewritten kernels with the runtime, once per source and mode."""

import functools
import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .cache import fetch, fill
from .contraction import choose_contraction
from .conversions import implicit_conversion
from .count_instrumentation import instrument
from .diagnostics import read_diagnostics
from .errors import Diagnostic, MetalError
from .kernel_table import KERNEL_TABLE, kernel_table
from .member_address_spaces import members_missing_thread
from .preprocess import preprocess
from .rewrite import Rewritten, rewrite
from .syntax_tree import nodes
from .toolchain import clang, sources
from .variable_address_spaces import GlobalVariables

HERE = Path(__file__).resolve().parent
BUILD = HERE.parent.parent / "build" / "metal_emulator"
MODES = ("plain", "asan", "race", "count", "loose")

LANGUAGE = [
    "-std=c++23",
    "-xc++",
    "-fsigned-char",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-strict-aliasing",
    "-ferror-limit=0",
    "-fbracket-depth=1024",
    # Every operation rounds its result to its type: no fused multiply-adds, no excess precision.
    "-ffp-contract=off",
    *("-Xclang", "-ffloat16-excess-precision=none"),
    *("-Xclang", "-fbfloat16-excess-precision=none"),
    *("-Xclang", "-cl-single-precision-constant"),  # 1.0 is a float
    "-ftrivial-auto-var-init=pattern",  # uninitialized floats become NaN
    "-Wno-everything",
    "-Wuninitialized",
    "-Wsometimes-uninitialized",
    "-Wreturn-type",
    "-Wunused-value",
]
LINES = ["-gdwarf-4", "-gline-tables-only"]  # line numbers for fault reports
# Sanitizer checks, which call __ubsan_handle_…_minimal in runtime/faults.cpp.
CHECKS = "bounds,integer-divide-by-zero"
CHECKED = [f"-fsanitize={CHECKS}", f"-fsanitize-recover={CHECKS}", "-fsanitize-minimal-runtime"]
# KernelAddressSanitizer with outlined checks: every load and store becomes a call to a hook that
# runtime/access.cpp defines.
REPORTED_ACCESSES = ["-fsanitize=kernel-address", "-fno-vectorize", "-fno-slp-vectorize"]
for option in (
    "asan-instrumentation-with-call-threshold=0",
    "asan-kernel-mem-intrinsic-prefix=1",
    "asan-stack=0",
    "asan-globals=0",
    "asan-opt-same-temp=0",
):
    REPORTED_ACCESSES += ["-mllvm", f"-{option}"]
# Loops with constant trip counts are unrolled and functions inlined, as in GPU compilers: indices
# then cost no arithmetic, and a thread's arrays are registers. Other loops are not unrolled.
UNROLLED = ["-funroll-loops", "-finline-functions", "-mllvm", "-inline-threshold=100000"]
for option in ("threshold=4000", "allow-partial=false", "runtime=false"):
    UNROLLED += ["-mllvm", f"-unroll-{option}"]
MODE_FLAGS = {
    "plain": ["-O2", *CHECKED],
    "asan": ["-O1", "-fsanitize=address", "-fsanitize-address-use-after-return=never"],
    "race": ["-O1", *REPORTED_ACCESSES],
    "count": [
        *("-O1", *UNROLLED, *REPORTED_ACCESSES),
        "-fsanitize-coverage=bb,no-prune,trace-pc-guard",
    ],
    "loose": ["-O1", *CHECKED, "-DMSL_LOOSE", "-ffp-contract=on"],
}
RUNTIME = ["bfloat", "faults", "fibers", "memory", "scheduler", "server"]
MODE_RUNTIME = {
    "plain": ["watch_none", "ieee"],
    "asan": ["watch_none", "watch_asan", "ieee"],
    "race": ["access", "watch_races", "ieee"],
    "count": ["access", "watch_counts", "ieee"],
    "loose": ["watch_none", "loose"],
}

# Modes that rewrite clang's LLVM IR of the kernels before code generation.
IR_PASSES = {"count": instrument, "loose": choose_contraction}


@dataclass(frozen=True)
class Source:
    """A .metal file prepared for clang: C++ text, and the kernels' host names."""

    path: Path
    text: str
    kernels: tuple[str, ...]


def prepare(
    path: Path,
    include_dirs: Sequence[Path],
    defines: Mapping[str, object],
    constants: Mapping[int | str, object],
) -> Source:
    """Preprocesses and rewrites a .metal file; raises `MetalError` for invalid Metal."""
    code: Rewritten = rewrite(preprocess(path, include_dirs, defines, BUILD), constants)
    text = code.text + kernel_table(code.kernels)
    if code.diagnostics:
        # Adds clang's errors to the rewriter's, so that all errors are reported at once.
        others, _ = _syntax(text)
        known = {(d.file, d.line) for d in code.diagnostics}
        others = [d for d in others if (d.file, d.line) not in known and d.file != KERNEL_TABLE]
        raise MetalError(sorted([*code.diagnostics, *others], key=lambda d: (d.file, d.line)))
    return Source(path, text, tuple(kernel.host_name for kernel in code.kernels))


def check(source: Source) -> list[Diagnostic]:
    """Type-checks without compiling; returns warnings, raises `MetalError` for errors."""
    errors, warnings = _syntax(source.text)
    if errors:
        raise MetalError(errors)
    return warnings


def _syntax(text: str) -> tuple[list[Diagnostic], list[Diagnostic]]:
    command = [clang(), *LANGUAGE, "-fsyntax-only", "-Xclang", "-ast-dump"]
    command += ["-fno-color-diagnostics", "-include-pch", str(_precompiled_header()), "-"]
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    errors, warnings = _split_by_severity(result.stderr)
    return errors + _not_metal(result.stdout), warnings


def _not_metal(dump: str) -> list[Diagnostic]:
    """Reports code that clang accepts but Metal does not. Ignores the emulator's own headers."""
    found: dict[Diagnostic, None] = {}
    variables = GlobalVariables()
    tree = list(nodes(dump))
    for node in tree:
        for finding in (implicit_conversion(node), variables.misplaced(node)):
            if finding is not None:
                found[finding] = None
    found |= dict.fromkeys(members_missing_thread(tree))
    return [d for d in found if d.file != KERNEL_TABLE and not d.file.startswith(str(HERE))]


@functools.cache
def _precompiled_header() -> Path:
    """Precompiles msl/metal.h for the type check, which then reads and dumps only the kernels."""

    def make(folder: Path) -> None:
        header = str(HERE / "msl" / "metal.h")
        flags = [
            "-std=c++23",
            "-xc++-header",
            *LANGUAGE[2:],
            header,
            "-o",
            str(folder / "metal.pch"),
        ]
        subprocess.run([clang(), *flags], check=True)

    return _cached("headers", [HERE / "msl", HERE / "runtime"], make) / "metal.pch"


def _split_by_severity(output: str) -> tuple[list[Diagnostic], list[Diagnostic]]:
    found = list(dict.fromkeys(read_diagnostics(output, str(HERE))))
    errors = [d for d in found if d.severity == "error"]
    # A wrong signature also causes errors in the kernel table. They are reported only if there are
    # no errors elsewhere.
    errors = [d for d in errors if d.file != KERNEL_TABLE] or errors
    return errors, [d for d in found if d.severity != "error"]


@dataclass(frozen=True)
class Program:
    """A compiled library: the executable, and the warnings of the type check."""

    executable: Path
    warnings: list[Diagnostic]


def compile_program(source: Source, mode: str) -> Program:
    """Compiles a kernel library's program for a mode, or returns it from the cache."""
    flags = [*LANGUAGE, *LINES, *MODE_FLAGS[mode]]
    key = hashlib.sha256("\0".join([source.text, *flags, _fingerprint()]).encode()).hexdigest()
    folder = BUILD / "programs" / f"{source.path.stem}-{mode}-{key[:16]}"
    fetch(folder, functools.partial(_build, source, mode, flags))
    warnings = json.loads((folder / "warnings.json").read_text())
    return Program(folder / "program", [Diagnostic(**warning) for warning in warnings])


def _build(source: Source, mode: str, flags: list[str], folder: Path) -> None:
    """Compiles and links the program in `folder`; raises `MetalError` for clang's errors."""
    if mode == "plain":
        check(source)
    text, object_file, ir = (folder / f"kernels{suffix}" for suffix in (".cpp", ".o", ".ll"))
    text.write_text(f'#include "{HERE / "msl" / "metal.h"}"\n{source.text}')
    if mode in IR_PASSES:
        warnings = _run_clang([clang(), *flags, "-S", "-emit-llvm", str(text), "-o", str(ir)])
        ir.write_text(IR_PASSES[mode](ir.read_text()))
        _run_clang([clang(), "-O1", "-Wno-everything", "-c", str(ir), "-o", str(object_file)])
    else:
        warnings = _run_clang([clang(), *flags, "-c", str(text), "-o", str(object_file)])
    objects = [
        object_file,
        *(_runtime_objects() / f"{name}.o" for name in RUNTIME + MODE_RUNTIME[mode]),
    ]
    link = [clang(), "-no-pie", *map(str, objects), "-o", str(folder / "program"), "-lm"]
    _run_clang(link + (["-fsanitize=address"] if mode == "asan" else []))
    (folder / "warnings.json").write_text(json.dumps([vars(d) for d in warnings]))


def _run_clang(command: list[str]) -> list[Diagnostic]:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    errors, warnings = _split_by_severity(result.stderr)
    if errors:
        raise MetalError(errors)
    if result.returncode != 0:
        raise MetalError([Diagnostic("clang", 0, result.stderr.strip())])
    return warnings


@functools.cache
def _fingerprint() -> str:
    """Hash of the emulator's sources and the compiler's path."""
    digest = hashlib.sha256(os.path.realpath(clang()).encode())
    for path in sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _runtime_objects() -> Path:
    """Folder of the compiled runtime."""

    def make(folder: Path) -> None:
        files = [str(path) for path in sorted((HERE / "runtime").glob("*.cpp"))]
        command = [clang(), "-std=c++20", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-c", *files]
        subprocess.run(command, cwd=folder, check=True)

    return _cached("runtime", [HERE / "runtime"], make)


def _cached(name: str, depends_on: list[Path], make: Callable[[Path], None]) -> Path:
    """Cached folder that `make` fills; a new one if the compiler's path or `depends_on` changes."""
    digest = hashlib.sha256(os.path.realpath(clang()).encode())
    for path in sorted(file for folder in depends_on for file in folder.iterdir()):
        digest.update(str(path).encode() + path.read_bytes())
    folder = BUILD / name / digest.hexdigest()[:16]
    if not folder.exists():
        fill(folder, make)
    return folder
