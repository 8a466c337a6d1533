"""Translates flags for Apple's linker, from CMake and nanobind, to ziglang's.

    python link.py ZIG c++ …

CMake calls this in front of the linker (CMAKE_CXX_LINKER_LAUNCHER). Changed flags:

  -bundle           becomes -shared, as ziglang has no bundles; Python loads dynamic libraries, too
  -Wl,@file         dropped: symbols that may stay undefined, which the stub `interpreter` defines
  -Wl,-x, -Wl,-S    dropped, because they strip symbols that module.py inspects
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
