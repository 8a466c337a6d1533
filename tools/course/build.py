"""Builds a learner's extension inside the learner's tree."""

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from .tree import EXTENSION

STALE = "your extension's sources were changed after it was built: `pdm run build-ext`"
# Sources of the module. Without a Mac, the tests compile the Metal kernels.
COMPILED = {".cpp", ".h", ".cmake", ".txt"} | ({".metal"} if sys.platform == "darwin" else set())

# Options for a build whose speed does not matter: it takes two thirds of the time, and the bits are
# the same.
LESS_OPTIMIZED = ("-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG", "-DTINY_LLM_KERNEL_OPTIMIZATION=-O1")


def build_tree(tree: Path, *options: str) -> str | None:
    """Builds incrementally; the solution's build is untouched.

    Args:
        tree: the learner's tree.
        options: CMake options.

    Returns:
        None on success, else the build's output.
    """
    source, objects, package = tree / EXTENSION, tree / "build" / "objects", tree / "build/package"
    configure = ["cmake", "-S", str(source), "-B", str(objects), "-G", "Ninja"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}", "-DTINY_LLM_UNITY=untasked", *options]
    begun = time.time()
    install = ["cmake", "--install", str(objects), "--prefix", str(package)]
    for command in (configure, ["cmake", "--build", str(objects)], install):
        run = subprocess.run(
            command,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if run.returncode != 0:
            return run.stdout
    for file in (source / "tiny_llm_ext").glob("*.py"):
        shutil.copy(file, package / "tiny_llm_ext")
    _stamp(tree).touch()
    os.utime(_stamp(tree), (begun, begun))
    return None


def is_stale(tree: Path) -> bool:
    """Whether the sources of a learner's built extension have changed.

    Its tests would run the old build and report an implemented task as missing.
    """
    if not _stamp(tree).exists():
        return False
    built = _stamp(tree).stat().st_mtime
    files = (file for file in (tree / EXTENSION).rglob("*") if file.suffix in COMPILED)
    return any(file.stat().st_mtime > built for file in files)


def _stamp(tree: Path) -> Path:
    """Empty file with the time at which the module's build began."""
    return tree / "build" / "built"


def solution_module() -> Path | None:
    """The solution's compiled module, if installed in this environment."""
    return next((Path(sysconfig.get_path("platlib")) / "tiny_llm_ext").glob("_ext.*"), None)


def built_module(tree: Path) -> Path | None:
    """The compiled module of a learner's tree, if built."""
    return next((tree / "build" / "package" / "tiny_llm_ext").glob("_ext.*"), None)


def num_cores() -> int:
    """Number of processors available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
