"""Translates flags for Apple's linker, from CMake and nanobind, to ziglang's.

    python link.py ZIG c++ …

CMake calls this in front of the linker (CMAKE_CXX_LINKER_LAUNCHER). Three flags differ:

  -bundle           unsupported by ziglang; Python also loads a dynamic library
  -Wl,@file         symbols that may stay undefined; the stub `interpreter` defines these
  -Wl,-x, -Wl,-S    would strip the symbols that module.py inspects
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
