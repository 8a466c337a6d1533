"""Metal emulator: runs kernels on a CPU and reports their faults."""

from .counts import Counts
from .device import Device, emulated_gpu
from .errors import Diagnostic, MetalError, MetalFault, ToolMissingError, UnreportedFaultError
from .library import Launch, Library
from .toolchain import has_clang

__all__ = [
    "Counts",
    "Device",
    "Diagnostic",
    "Launch",
    "Library",
    "MetalError",
    "MetalFault",
    "ToolMissingError",
    "UnreportedFaultError",
    "emulated_gpu",
    "has_clang",
]
