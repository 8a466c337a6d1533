"""TINY_LLM_EMULATED_METAL=1: emulated GPU on machines without Metal.

Operations run the same host code and kernels as on a Mac, about a thousand times slower. The
emulator is in the source checkout (tools/metal_emulator), not in the installed package.
"""

import atexit
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "TINY_LLM_EMULATED_METAL"
ROOT = Path(__file__).resolve().parents[3]

device: Any = None  # the attached emulator, if any


def is_requested() -> bool:
    """Whether `VARIABLE` is 1; raises `ValueError` if it is not 0, 1 or empty."""
    value = os.environ.get(VARIABLE, "0")
    if value not in ("", "0", "1"):
        raise ValueError(f"{VARIABLE} must be 0 or 1, got '{value}'.")
    return value == "1"


def attach(extension: ModuleType) -> Any:
    """Attaches the emulator as the extension's GPU and returns the GPU stream.

    Faults are printed at exit and set exit status 1, even if the engine has caught their exceptions
    to fail only the affected request.

    Raises:
        ValueError: the source checkout or clang is missing.
    """
    if not (ROOT / "tools" / "metal_emulator").is_dir():
        raise ValueError(
            f"{VARIABLE}=1 requires the emulator, which only the source tree has; run from a clone."
        )
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    from tools.metal_emulator import Device, has_clang

    if not has_clang():
        raise ValueError(
            f"{VARIABLE}=1 requires clang 19 or later; on Debian and Ubuntu: `apt install clang-19 "
            "libclang-rt-19-dev`."
        )
    global device
    device = Device.from_environment(extension)
    device.attach()
    atexit.register(_end_with_faults)
    return device.stream()


def report_faults() -> bool:
    """Prints unreported faults, one per line; returns whether there were any."""
    faults = device.take_faults() if device is not None else []
    for fault in faults:
        print(f"{VARIABLE}=1 found a fault: {fault}", file=sys.stderr)
    return bool(faults)


def _end_with_faults() -> None:
    if report_faults():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)  # sys.exit has no effect in an atexit handler
