"""Translates flags for Apple's linker, from CMake and nanobind, to ziglang's.

    python link.py ZIG c++ …

CMake prefixes the link command with this script (CMAKE_CXX_LINKER_LAUNCHER). Changed flags:

  -bundle           becomes -shared: ziglang cannot link bundles, and Python loads both
  -Wl,@file         dropped: lists symbols to leave undefined; the stub `interpreter` defines them
  -Wl,-x, -Wl,-S    dropped: strip symbols that module.py inspects
"""

import os
import sys


def translate(arguments: list[str]) -> list[str]:
    """Translates a link command's arguments to ziglang's."""
    command = []
    for argument in arguments:
        if argument == "-bundle":
            command.append("-shared")
        elif not (argument.startswith("-Wl,@") or argument in ("-Wl,-x", "-Wl,-S")):
            command.append(argument)
    return command


if __name__ == "__main__":
    os.execv(sys.argv[1], translate(sys.argv[1:]))
