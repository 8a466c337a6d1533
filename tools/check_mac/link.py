"""Runs ziglang's linker with the flags that CMake and nanobind mean for Apple's.

    python link.py ZIG c++ …

CMake calls this in front of the linker (CMAKE_CXX_LINKER_LAUNCHER). Three flags differ:
  -bundle           ziglang makes dynamic libraries only; Python loads either
  -Wl,@file         names that may stay open: ziglang finds them in the stub `interpreter` instead
  -Wl,-x, -Wl,-S    would strip the names that module.py looks for
"""

import os
import sys


def translate(arguments: list[str]) -> list[str]:
    """The command as ziglang understands it."""
    command = []
    for argument in arguments:
        if argument == "-bundle":
            command.append("-shared")
        elif not (argument.startswith("-Wl,@") or argument in ("-Wl,-x", "-Wl,-S")):
            command.append(argument)
    return command


if __name__ == "__main__":
    os.execv(sys.argv[1], translate(sys.argv[1:]))
