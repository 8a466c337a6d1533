"""Builds a learner's extension, into the learner's own tree."""

import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from .tree import EXTENSION

STALE = "your extension's sources were changed after it was built: `pdm run build-ext`"
# What is compiled into the module. Without a Mac, Metal kernels are compiled by the tests.
COMPILED = {".cpp", ".h", ".cmake", ".txt"} | ({".metal"} if sys.platform == "darwin" else set())

# Options for a build whose speed does not matter: it takes two thirds of the time, and the bits are
# the same.
LESS_OPTIMIZED = ("-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG", "-DTINY_LLM_KERNEL_OPTIMIZATION=-O1")


def build_tree(tree: Path, *options: str) -> str | None:
    """Compiles what changed since the last time; the solution's build is left alone.

    Args:
        tree: the learner's.
        options: for CMake.

    Returns:
        None if it built, otherwise what the tools said.
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
    """Whether a learner's extension was built, and its sources were changed since.

    Its tests then run what was built, and say of a task that was written that it is not.
    """
    if not _stamp(tree).exists():
        return False
    built = _stamp(tree).stat().st_mtime
    files = (file for file in (tree / EXTENSION).rglob("*") if file.suffix in COMPILED)
    return any(file.stat().st_mtime > built for file in files)


def _stamp(tree: Path) -> Path:
    """An empty file, as old as the beginning of the build that made the module."""
    return tree / "build" / "built"


def solution_module() -> Path | None:
    """The compiled module of the solution, if it is installed in this environment."""
    return next((Path(sysconfig.get_path("platlib")) / "tiny_llm_ext").glob("_ext.*"), None)


def built_module(tree: Path) -> Path | None:
    """The compiled module of a learner's tree, if it was built."""
    return next((tree / "build" / "package" / "tiny_llm_ext").glob("_ext.*"), None)


def num_cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
