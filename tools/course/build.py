"""Builds the learner's C++ extension in the learner's source tree."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from .tree import EXAMPLE, EXTENSION, ROOT

STALE = "your extension's sources were changed after it was built: `pdm run build-ext`"
# Suffixes of build inputs; .metal only on a Mac, because elsewhere the tests compile the kernels.
COMPILED = {".cpp", ".h", ".cmake", ".txt"} | ({".metal"} if sys.platform == "darwin" else set())

# CMake options for correctness tests: a third less build time, the same results.
LESS_OPTIMIZED = ("-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG", "-DTINY_LLM_KERNEL_OPTIMIZATION=-O1")


def build_tree(tree: Path, *options: str) -> str | None:
    """Builds incrementally with CMake `options`; returns the output on failure."""
    source, objects, package = tree / EXTENSION, tree / "build" / "objects", tree / "build/package"
    configure = ["cmake", "-S", str(source), "-B", str(objects), "-G", "Ninja"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}", "-DTINY_LLM_UNITY=untasked"]
    configure += ["-DTINY_LLM_HOST_ONLY=ON", *options]
    started = time.time()
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
    os.utime(_stamp(tree), (started, started))
    return None


def is_stale(tree: Path) -> bool:
    """Whether a learner's extension is older than its sources.

    With a stale extension, tests would run old code and report written tasks as unwritten.
    """
    if not _stamp(tree).exists():
        return False
    built = _stamp(tree).stat().st_mtime
    files = (file for file in (tree / EXTENSION).rglob("*") if file.suffix in COMPILED)
    built_here = (file for file in files if not file.is_relative_to(tree / EXAMPLE))
    return any(file.stat().st_mtime > built for file in built_here)


def _stamp(tree: Path) -> Path:
    """Path of an empty file whose mtime is the start of the last successful build."""
    return tree / "build" / "built"


def solution_module() -> Path | None:
    """Returns the solution's compiled module, if installed in this environment."""
    return next((Path(sysconfig.get_path("platlib")) / "tiny_llm_ext").glob("_ext.*"), None)


def built_module(tree: Path) -> Path | None:
    """Returns the compiled module of a learner's source tree, if built."""
    return next((tree / "build" / "package" / "tiny_llm_ext").glob("_ext.*"), None)


def require_pytest(command: str) -> None:
    """Restarts `pdm run command` under `./pdmw` if pytest is missing from pdmw's environment.

    `./pdmw` installs a command's packages on first use; `pdm` of the same environment does not.
    """
    if importlib.util.find_spec("pytest") is not None:
        return
    if not (ROOT / ".venv" / "groups.installed").exists():
        sys.exit(f"{command}: pytest is not installed; `pdm install` installs it.")
    os.execv(ROOT / "pdmw", ["pdmw", "run", command, *sys.argv[1:]])


def num_cores() -> int:
    """Returns the number of processors available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
