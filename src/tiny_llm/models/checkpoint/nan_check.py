"""Weights that are no numbers: NaN and infinity, which turn every answer into one token repeated.

Each floating-point array is read once, where it lies. Integers are always numbers, so of a layer
of 4-bit weights only the scales and biases are read.

Among the bit patterns of one sign, infinity and all NaN are the largest. So two maxima tell whether
an array has any: that of its bits as signed integers, where positive numbers are the largest, and
that of its bits as unsigned ones, where negative numbers are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from threading import local
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten


@dataclass(frozen=True)
class _Format:
    """How numbers are stored: integers of their size, and where each sign's numbers end."""

    signed: mx.Dtype
    unsigned: mx.Dtype
    positive_end: int  # the first pattern that is no finite number
    negative_end: int


FORMATS = {
    mx.float32: _Format(mx.int32, mx.uint32, 0x7F80_0000, 0xFF80_0000),
    mx.bfloat16: _Format(mx.int16, mx.uint16, 0x7F80, 0xFF80),
    mx.float16: _Format(mx.int16, mx.uint16, 0x7C00, 0xFC00),
}
E4M3 = _Format(mx.int8, mx.uint8, 0x7F, 0xFF)
E8M0 = _Format(mx.uint8, mx.uint8, 0xFF, 0xFF)  # powers of two, without a sign

# Floating point of 8 bits, which MLX stores as integers: the formats of a layer, by its mode.
FLOAT8_ARRAYS = {
    "mxfp4": {"scales": E8M0},
    "mxfp8": {"scales": E8M0, "weight": E4M3},
    "nvfp4": {"scales": E4M3},
}


class FiniteCheck:
    """Reads the parts of a model one after the other, while the next is loaded.

    It has a stream of MLX's to itself, which is a thread. So most of its time is not waited for.
    """

    def __init__(self) -> None:
        self._stream = _stream()
        self._checked: list[tuple[str, _Format, mx.array, mx.array]] = []

    def add(self, path: str, module: Any) -> None:
        """Begins to read a module.

        Args:
            path: of the module, for the sentence; "" for a whole model.
            module: evaluated.
        """
        to, first = self._stream, len(self._checked)
        for name, array, form in _float_arrays(path, module):
            positive = mx.max(array.view(form.signed, stream=to), stream=to)
            negative = mx.max(array.view(form.unsigned, stream=to), stream=to)
            self._checked.append((name, form, positive, negative))
        mx.async_eval([maxima for _, _, *maxima in self._checked[first:]])

    def finish(self) -> None:
        """Waits for all of it.

        Raises:
            ValueError: a weight, scale or bias is NaN or infinite; it names the first such array.
        """
        for name, form, positive, negative in self._checked:
            if _as_int(positive) >= form.positive_end or _as_int(negative) >= form.negative_end:
                raise ValueError(
                    f"{name} has numbers that are NaN or infinite, which no answer survives; get "
                    "another copy of the model"
                )


_thread_local = local()


def _stream() -> mx.Stream:
    """One for all models that a thread loads. Another thread cannot use it."""
    if not hasattr(_thread_local, "stream"):
        _thread_local.stream = mx.new_stream(mx.cpu)
    stream: mx.Stream = _thread_local.stream
    return stream


def _as_int(scalar: mx.array) -> int:
    return int(scalar.item())  # type: ignore[arg-type]


def _float_arrays(path: str, module: Any) -> Iterator[tuple[str, mx.array, _Format]]:
    """Each array that is not empty and can have such numbers, with its name and format."""
    modes = {
        f"{where}.{name}" if where else name: form
        for where, layer in module.named_modules()
        for name, form in FLOAT8_ARRAYS.get(getattr(layer, "mode", ""), {}).items()
    }
    arrays: Any = tree_flatten(module)
    for name, array in arrays:
        form = FORMATS.get(array.dtype) or modes.get(name)
        if form is not None and array.size > 0:
            yield f"{path}.{name}" if path else name, array, form
