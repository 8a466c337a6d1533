"""Detection of NaN and infinite weights.

Each floating-point array is read without a copy. Integers need no check, so only the scales and
biases of a layer with 4-bit weights are read.

Among the bit patterns of one sign, infinity and the NaNs are the largest. Two maxima therefore
detect them: the maximum as signed integers is the largest positive number, and the maximum as
unsigned integers is the negative number of largest magnitude.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from threading import local
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten


@dataclass(frozen=True)
class _Format:
    """Bit layout of a floating-point format."""

    signed: mx.Dtype
    unsigned: mx.Dtype
    positive_end: int  # lowest positive bit pattern that is infinite or NaN
    negative_end: int  # same for negative patterns, as an unsigned integer


FORMATS = {
    mx.float32: _Format(mx.int32, mx.uint32, 0x7F80_0000, 0xFF80_0000),
    mx.bfloat16: _Format(mx.int16, mx.uint16, 0x7F80, 0xFF80),
    mx.float16: _Format(mx.int16, mx.uint16, 0x7C00, 0xFC00),
}
E4M3 = _Format(mx.int8, mx.uint8, 0x7F, 0xFF)
E8M0 = _Format(mx.uint8, mx.uint8, 0xFF, 0xFF)  # powers of two, without a sign

# 8-bit floating-point arrays, stored by MLX as integers: mode -> array name -> format.
FLOAT8_ARRAYS = {
    "mxfp4": {"scales": E8M0},
    "mxfp8": {"scales": E8M0, "weight": E4M3},
    "nvfp4": {"scales": E4M3},
}


class FiniteCheck:
    """Searches loaded layers for NaN and infinity while the next layer loads.

    Runs on a dedicated MLX stream, and thus in a separate thread.
    """

    def __init__(self) -> None:
        self._stream = _stream()
        self._checked: list[tuple[str, _Format, mx.array, mx.array]] = []

    def add(self, path: str, module: Any) -> None:
        """Starts checking a module's evaluated arrays; `path` names it in errors."""
        stream, first = self._stream, len(self._checked)
        for name, array, float_format in _float_arrays(path, module):
            positive = mx.max(array.view(float_format.signed, stream=stream), stream=stream)
            negative = mx.max(array.view(float_format.unsigned, stream=stream), stream=stream)
            self._checked.append((name, float_format, positive, negative))
        mx.async_eval([maxima for _, _, *maxima in self._checked[first:]])

    def finish(self) -> None:
        """Waits for all checks; ValueError for the first array with NaN or infinity."""
        for name, float_format, positive, negative in self._checked:
            maxima = _as_int(positive), _as_int(negative)
            if maxima[0] >= float_format.positive_end or maxima[1] >= float_format.negative_end:
                raise ValueError(
                    f"{name} has NaN or infinite values, which make every output invalid; "
                    "download the model again"
                )


_thread_local = local()


def _stream() -> mx.Stream:
    """The calling thread's stream, because MLX streams are bound to a thread."""
    if not hasattr(_thread_local, "stream"):
        _thread_local.stream = mx.new_stream(mx.cpu)
    stream: mx.Stream = _thread_local.stream
    return stream


def _as_int(scalar: mx.array) -> int:
    return int(scalar.item())  # type: ignore[arg-type]


def _float_arrays(path: str, module: Any) -> Iterator[tuple[str, mx.array, _Format]]:
    """Yields (name, array, format) for each non-empty floating-point array."""
    modes = {
        f"{where}.{name}" if where else name: float_format
        for where, layer in module.named_modules()
        for name, float_format in FLOAT8_ARRAYS.get(getattr(layer, "mode", ""), {}).items()
    }
    arrays: Any = tree_flatten(module)
    for name, array in arrays:
        float_format = FORMATS.get(array.dtype) or modes.get(name)
        if float_format is not None and array.size > 0:
            yield f"{path}.{name}", array, float_format
