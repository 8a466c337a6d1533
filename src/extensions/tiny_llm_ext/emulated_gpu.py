"""TINY_LLM_EMULATED_METAL=1: an emulator in the place of a GPU, on a machine without Metal.

Operations run as on a Mac, with the same code up to the kernels and with the kernels themselves,
about a thousand times as slowly: to find out what a Mac will do. The emulator is part of the source
tree (tools/metal_emulator), not of the installed package.
"""

import atexit
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "TINY_LLM_EMULATED_METAL"
ROOT = Path(__file__).resolve().parents[3]

device: Any = None  # the one that the variable asked for


def is_wanted() -> bool:
    """Whether the variable asks for it.

    Raises:
        ValueError: it is neither 0 nor 1.
    """
    value = os.environ.get(VARIABLE, "0")
    if value not in ("", "0", "1"):
        raise ValueError(f"{VARIABLE} is '{value}'; give 1 for an emulated GPU, or 0.")
    return value == "1"


def attach(extension: ModuleType) -> Any:
    """Makes the emulator the extension's GPU, and returns the stream that counts as the GPU's.

    A process in which it found a fault ends with exit status 1 and says what it was, even if the
    error was caught: an engine ends one request with it and goes on.

    Raises:
        ValueError: the source tree or clang is not there.
    """
    if not (ROOT / "tools" / "metal_emulator").is_dir():
        raise ValueError(
            f"{VARIABLE}=1 needs the emulator, which is in the source tree; run from a clone."
        )
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    from tools.metal_emulator import Device, has_clang

    if not has_clang():
        raise ValueError(
            f"{VARIABLE}=1 needs clang 19 or later; on Debian and Ubuntu: `apt install clang-19 "
            "libclang-rt-19-dev`."
        )
    global device
    device = Device.from_environment(extension)
    device.attach()
    atexit.register(_end_with_faults)
    return device.stream()


def report_faults() -> bool:
    """Whether the emulator found faults that have not been reported; now they are, one a line."""
    faults = device.take_faults() if device is not None else []
    for fault in faults:
        print(f"{VARIABLE}=1 found a fault: {fault}", file=sys.stderr)
    return bool(faults)


def _end_with_faults() -> None:
    if report_faults():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # at this point nothing else changes the status
