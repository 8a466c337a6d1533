"""Emulated GPU for the extension, selected by TINY_LLM_EMULATED_METAL=1.

The extension's GPU code runs (`eval_gpu`, launches, copies, temporaries), records the commands it
would send to Metal, and determines where MLX would insert barriers (src/extensions/emulated_metal).
This module runs the recorded commands in the emulator with all its checks, in forward, reverse or
random order as far as barriers allow.
"""

import ctypes
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arguments import FLOATS, BufferView, Parameter, accepts_dtype
from .compiler import BUILD, MODES
from .errors import MetalError, MetalFault, UnreportedFaultError
from .library import MAX_THREADS, Library
from .process import ORDERS

TEXTS = BUILD / "texts"


@dataclass
class Device:
    """An emulated GPU for the module `tiny_llm_ext`.

    Attributes:
        mode: mode of every launch: "plain", "asan", "race" or "loose".
        order: order of commands between two barriers, and within a command; see `Library.launch`.
        seed: seed of the random order, and of the arithmetic of mode "loose".
        delay: number of later operations after which an operation completes. MLX retains the inputs
            of an operation until then.
        max_threads: maximum threads per threadgroup that a compiled kernel reports.
        launches: number of commands run, by kernel.
        faults: one sentence per fault. Each was also raised, but the caller may have caught it.
    """

    extension: Any
    mode: str = "plain"
    order: str = "forward"
    seed: int = 1
    delay: int = 0
    max_threads: int = MAX_THREADS
    launches: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    _libraries: dict[str, Library] = field(default_factory=dict)
    _arithmetic: int = field(init=False)

    @classmethod
    def from_environment(cls, extension: Any) -> "Device":
        """Device with the settings of TINY_LLM_EMULATED_METAL_MODE, _ORDER, _SEED and _DELAY."""
        settings = {
            name: os.environ[variable]
            for name in ("mode", "order", "seed", "delay")
            if (variable := f"TINY_LLM_EMULATED_METAL_{name.upper()}") in os.environ
        }
        numbers = {name: int(settings.pop(name)) for name in ("seed", "delay") if name in settings}
        return cls(extension, **settings, **numbers)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        self._arithmetic = self.seed
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {self.mode!r}")
        if self.order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {self.order!r}")

    def attach(self) -> None:
        """Routes the extension's operations on `stream()` to this device."""
        self.extension.metal.emulator.set_delay(self.delay)
        self.extension.metal.emulator.attach(self.compile, self.run, self.record_fault)

    def detach(self) -> None:
        """Detaches the device from the extension."""
        self.extension.metal.emulator.attach(None, None)

    def stream(self) -> Any:
        """The stream of the emulated GPU."""
        return self.extension.metal.emulator.stream()

    def compile(self, name: str, text: str) -> dict[str, tuple[int, list[int]]]:
        """Compiles a Metal source; raises `RuntimeError` with the compiler's message.

        Returns (maximum threads per threadgroup, indices of written buffers) by kernel.
        """
        file = TEXTS / f"{name}.metal"
        TEXTS.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(f".{os.getpid()}")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(file)
        try:
            library = self._libraries[name] = Library(file)
        except MetalError as error:
            raise RuntimeError(str(error)) from None
        described = {}
        for kernel in library.kernels:
            written = [p.index for p in library.parameters(kernel) if p.writes]
            limit = library.max_threads(kernel) or MAX_THREADS
            if self.mode == "loose":
                limit = library.threads_allowed(kernel, self._arithmetic)
            described[kernel] = (min(limit, self.max_threads), written)
        return described

    def run(self, commands: Sequence[dict[str, Any]]) -> None:
        """Runs recorded commands; raises `MetalFault` for faults or missing barriers."""
        for between_barriers in _epochs(commands):
            _check_hazards(between_barriers, self._written)
            for command in self._ordered(between_barriers):
                self._launch(command)

    def record_fault(self, operation: str, why: str) -> None:
        """Records the fault of an operation; `why` may begin with a traceback."""
        _, _, sentence = why.rpartition(f"{MetalFault.__name__}: ")
        self.faults.append(f"{operation}: {sentence}")

    def take_faults(self) -> list[str]:
        """Returns and clears the faults."""
        taken, self.faults = self.faults, []
        return taken

    def check_faults(self) -> None:
        """Raises `UnreportedFaultError` for faults not yet returned by `take_faults`."""
        if self.faults:
            raise UnreportedFaultError(self.take_faults())

    def _written(self, command: dict[str, Any]) -> set[int]:
        parameters = self._libraries[command["library"]].parameters(command["kernel"])
        return {parameter.index for parameter in parameters if parameter.writes}

    def _ordered(self, commands: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if self.order == "reverse":
            return commands[::-1]
        if self.order == "random":
            self.seed += 1
            return random.Random(self.seed).sample(commands, len(commands))
        return commands

    def _launch(self, command: dict[str, Any]) -> None:
        kernel, library = command["kernel"], self._libraries[command["library"]]
        parameters = {p.index: p for p in library.parameters(kernel) if p.binding == "buffer"}
        arguments: dict[int, object] = dict(command["bytes"])
        memory: dict[tuple[int, int], NDArray[np.generic]] = {}
        for index, address, size, lead, dtype in command["buffers"]:
            if index in arguments:
                text = f"buffer({index}) is bound twice by {command['operation']}"
                raise MetalFault("wrong-argument", kernel, text)
            key = (address, size)
            array = memory.get(key)
            if array is None or array.dtype != _numpy_type(dtype):
                array = memory[key] = _array_at(address, size, dtype)
            arguments[index] = BufferView(_as_pointed_at(parameters.get(index), array), lead)
        self.launches[kernel] = self.launches.get(kernel, 0) + 1
        try:
            library.launch(
                kernel,
                arguments,
                grid=tuple(command["grid"]),
                threads=tuple(command["threads"]),
                threadgroup_memory=command["threadgroup_memory"] or None,
                mode=self.mode,
                order=self.order,
                seed=self._arithmetic if self.mode == "loose" else self.seed,
            )
        except MetalFault as fault:
            fault.add_note(f"started by {command['operation']}")
            raise


def _epochs(commands: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Splits commands into groups at barriers."""
    epoch: list[dict[str, Any]] = []
    for command in commands:
        if command["has_barrier"] and epoch:
            yield epoch
            epoch = []
        epoch.append(command)
    if epoch:
        yield epoch


def _check_hazards(commands: Sequence[dict[str, Any]], written: Any) -> None:
    """Raises `MetalFault` for conflicting commands without a barrier in between.

    `written` maps a command to the indices of the buffers that it writes.
    """
    ranges = []
    for command in commands:
        writes = written(command)
        for index, address, size, _, _ in command["buffers"]:
            if size:
                ranges.append((address, address + size, index in writes, command, index))
    ranges.sort(key=lambda one: one[0])
    for position, (_, end, is_write, command, index) in enumerate(ranges):
        for start, _, other_is_write, other, other_index in ranges[position + 1 :]:
            if start >= end:
                break
            if command is not other and (is_write or other_is_write):
                text = (
                    f"{command['operation']} and {other['operation']} access the same memory "
                    f"(buffer({index}) of {command['kernel']}, buffer({other_index}) of "
                    f"{other['kernel']}), one of them writes it, and no barrier separates them"
                )
                raise MetalFault("hazard", other["kernel"], text)


def _as_pointed_at(parameter: Parameter | None, array: NDArray[np.generic]) -> NDArray[np.generic]:
    """View of an array with the element type of a kernel's pointer.

    A pointer to bytes may point to any type, and a pointer to unsigned integers to any type of the
    same size, as in kernels that copy bits. For an array of any other type, which the kernel must
    not access, returns an empty array of the pointer's type.
    """
    if parameter is None or parameter.element in "vs" or accepts_dtype(parameter, array.dtype):
        return array
    if parameter.element == "u" and parameter.element_size in (1, array.dtype.itemsize):
        return array.view(f"u{parameter.element_size}")
    element = FLOATS.get(parameter.element) or f"{parameter.element}{parameter.element_size}"
    return np.empty(0, _numpy_type("bool" if parameter.element == "?" else element))


def _numpy_type(dtype: str) -> np.dtype[Any]:
    if dtype == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(dtype)


def _array_at(address: int, size: int, dtype: str) -> NDArray[np.generic]:
    """NumPy array that shares the memory of an MLX array of `size` bytes."""
    if size == 0:
        return np.empty(0, _numpy_type(dtype))
    memory = memoryview((ctypes.c_char * size).from_address(address))
    return np.frombuffer(memory, _numpy_type(dtype))


@contextmanager
def emulated_gpu(extension: Any, **settings: Any) -> Iterator[Device]:
    """Attaches `Device(extension, **settings)`; at the end, calls `check_faults`."""
    device = Device(extension, **settings)
    device.attach()
    try:
        yield device
    finally:
        device.detach()
    device.check_faults()
