"""Runs Metal kernels on a CPU and finds what is wrong with them: see the README beside this."""

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
