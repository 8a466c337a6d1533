"""Launch arguments: NumPy arrays and scalars, checked against the parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# NumPy's and Metal's names of element types, by the letter in msl::Parameter.element. INTEGERS has
# Metal's names of signed integers, by size in bytes.
FLOATS = {"f": "float32", "h": "float16", "b": "bfloat16"}
METAL = {"f": "float", "h": "half", "b": "bfloat", "?": "bool"}
INTEGERS = {1: "char", 2: "short", 4: "int", 8: "long"}


@dataclass(frozen=True)
class Parameter:
    """A buffer or threadgroup parameter of a kernel, as printed by the compiled program.

    The fields are those of msl::Parameter in runtime/interface.h; `binding` is "buffer" or
    "threadgroup".
    """

    name: str
    binding: str
    index: int
    element: str
    element_size: int
    size: int
    reference: bool
    writes: bool
    constant_space: bool
    optional: bool

    @property
    def metal_type(self) -> str:
        """Metal's name of the element type."""
        if self.element in METAL:
            return METAL[self.element]
        if self.element in "iu":
            name = INTEGERS[self.element_size]
            return name if self.element == "i" else f"u{name}"
        return {"v": "void", "s": f"a struct of {self.size} bytes"}[self.element]


@dataclass(frozen=True)
class Argument:
    """A value bound to a kernel's parameter.

    `data` are the value's bytes, copied to `target` after the launch if the kernel writes them;
    `lead` is the offset of the kernel's pointer in `data`, in bytes.
    """

    parameter: Parameter
    data: NDArray[np.uint8]
    target: NDArray[np.generic] | None
    lead: int = 0


@dataclass(frozen=True)
class BufferView:
    """A one-dimensional array, bound as a GPU buffer with an offset.

    The kernel's pointer is `lead` bytes past the array's start. In a launch, two bindings of the
    same array share memory.
    """

    array: NDArray[np.generic]
    lead: int = 0


Bindable = object  # an array, a NumPy scalar, a number, bytes or a BufferView


def bind(
    parameters: Sequence[Parameter], given: Sequence[Bindable] | Mapping[int, Bindable]
) -> list[Argument]:
    """Binds `given`, in order or by buffer index; raises `ValueError` if invalid."""
    values = dict(given) if isinstance(given, Mapping) else dict(enumerate(given))
    buffers = {p.index: p for p in parameters if p.binding == "buffer"}
    for index, parameter in buffers.items():
        if index not in values and not parameter.optional:
            raise ValueError(f"buffer({index}) '{parameter.name}' is not bound")
    unknown = sorted(values.keys() - buffers.keys())
    if unknown:
        raise ValueError(
            f"buffer({unknown[0]}) is bound, but the kernel has only "
            + ", ".join(f"buffer({i}) '{p.name}'" for i, p in sorted(buffers.items()))
        )
    return [_bind_one(buffers[index], value) for index, value in sorted(values.items())]


def _bind_one(parameter: Parameter, value: Bindable) -> Argument:
    where = f"buffer({parameter.index}) '{parameter.name}'"
    lead = value.lead if isinstance(value, BufferView) else 0
    value = value.array if isinstance(value, BufferView) else value
    if isinstance(value, (bytes, bytearray)):
        array: NDArray[np.generic] = np.frombuffer(value, np.uint8)
    elif isinstance(value, (bool, int, float)):
        array = _scalar(parameter, where, value)
    else:
        array = np.asarray(value)
    _check_type(parameter, where, array, raw=isinstance(value, (bytes, bytearray)))
    if parameter.reference and array.nbytes < parameter.size:
        raise ValueError(
            f"{where} must be a reference to {parameter.size} bytes, got {array.nbytes}"
        )
    target = value if isinstance(value, np.ndarray) and parameter.writes else None
    if target is not None and not target.flags.writeable:
        raise ValueError(f"{where} must be writable, as the kernel writes it")
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return Argument(parameter, data, target, lead)


def _scalar(parameter: Parameter, where: str, value: float) -> NDArray[np.generic]:
    """Converts a Python number to the parameter's type."""
    if parameter.element == "f":
        return np.array(value, np.float32)
    if parameter.element == "h":
        return np.array(value, np.float16)
    if parameter.element == "b":
        import ml_dtypes

        return np.array(value, ml_dtypes.bfloat16)
    if parameter.element == "?":
        return np.array(value, np.bool_)
    if parameter.element in "iu" and int(value) == value:
        return np.array(value, f"{parameter.element}{parameter.element_size}")
    raise ValueError(f"{where} must be {parameter.metal_type}, got the number {value}")


def accepts_dtype(parameter: Parameter, dtype: np.dtype[Any]) -> bool:
    """Whether a dtype matches the element type of the kernel's pointer."""
    element = parameter.element
    if element in FLOATS:
        return dtype.name == FLOATS[element]
    if element == "?":
        return dtype == np.bool_
    return dtype.kind in "iu" and dtype.itemsize == parameter.element_size


def _check_type(parameter: Parameter, where: str, array: NDArray[np.generic], raw: bool) -> None:
    """Checks the element type; integers of the same size are interchangeable."""
    element, dtype = parameter.element, array.dtype
    if element == "v" or raw:
        return
    if element == "s":
        if dtype.itemsize != parameter.size and dtype != np.uint8:
            raise ValueError(
                f"{where} must be {parameter.metal_type}, got elements of {dtype.itemsize} bytes"
            )
        return
    if not accepts_dtype(parameter, dtype):
        hint = ""
        if element == "b" and dtype.itemsize == 2:
            hint = "; use the array's view(ml_dtypes.bfloat16)"
        raise ValueError(
            f"{where} must be {parameter.metal_type} ({parameter.element_size} bytes), "
            f"got an array of {dtype.name}{hint}"
        )
