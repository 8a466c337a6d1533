"""Locates clang 19 or later, which has address spaces and bfloat in C++."""

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from .errors import ToolMissingError

OLDEST, NEWEST = 19, 29
HOW_TO_INSTALL = (
    "the Metal emulator needs clang 19 or later; on Debian and Ubuntu: "
    "`apt install clang-19 libclang-rt-19-dev`. "
    "TINY_LLM_CLANG=/path/to/clang++ selects one elsewhere."
)
ONLY_LINUX = "the Metal emulator runs on Linux; on a Mac the kernels run on the GPU."


@functools.cache
def clang() -> str:
    """Path of clang++; raises `ToolMissingError` with installation instructions."""
    if sys.platform != "linux":
        raise ToolMissingError(ONLY_LINUX)
    chosen = os.environ.get("TINY_LLM_CLANG")
    names = [f"clang++-{version}" for version in range(OLDEST, NEWEST)] + ["clang++"]
    for name in [chosen] if chosen else names:
        path = shutil.which(name)
        if path and _version(path) >= OLDEST:
            return path
    if chosen:
        raise ToolMissingError(
            f"TINY_LLM_CLANG={chosen} is not clang++ {OLDEST} or later; {HOW_TO_INSTALL}"
        )
    raise ToolMissingError(HOW_TO_INSTALL)


def has_clang() -> bool:
    """Whether clang, which checks and compiles the kernels, is installed."""
    try:
        clang()
    except ToolMissingError:
        return False
    return True


def _version(path: str) -> int:
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    match = re.search(r"clang version (\d+)", text)
    return int(match[1]) if match and "Apple" not in text else 0


def sources() -> list[Path]:
    """Files of the emulator that a compiled library depends on."""
    here = Path(__file__).parent
    return sorted(path for path in here.rglob("*") if path.suffix in (".h", ".cpp", ".py"))
