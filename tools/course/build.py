"""Builds a learner's extension, into the learner's own tree."""

import shutil
import subprocess
import sys
from pathlib import Path

from .tree import EXTENSION


def build_tree(tree: Path, *options: str) -> str | None:
    """Compiles what changed since the last time; the solution's build is left alone.

    Args:
        tree: the learner's.
        options: for CMake.

    Returns:
        None if it built, otherwise what the tools said.
    """
    source, objects, package = tree / EXTENSION, tree / "build" / "objects", tree / "build/package"
    configure = ["cmake", "-S", str(source), "-B", str(objects), "-G", "Ninja", *options]
    configure += [f"-DPython_EXECUTABLE={sys.executable}"]
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
    shutil.copy(source / "tiny_llm_ext" / "__init__.py", package / "tiny_llm_ext")
    return None


def built_module(tree: Path) -> Path | None:
    """The compiled module of a learner's tree, if it was built."""
    return next((tree / "build" / "package" / "tiny_llm_ext").glob("_ext.*"), None)
