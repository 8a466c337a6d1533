"""Quantized weights in the order in which the CPU's kernels read them.

The kernels for AVX-512 and AMX multiply a word of sixteen outputs at once, or of a few times as
many. In MLX's layout those words are a row apart in memory. *Interleaved*, the rows are stored word
by word, and words that are multiplied together are neighbours. Results have the same bits, and the
weights take as much memory. An array's shape says which it is: by row it is O×W, interleaved
(O/R)×W×R, where R is how many rows the kernels want together.

`load_weights` interleaves while it reads. Any other model is laid out when Week 2's or Week 3's is
built from it: `lay_out`. So both have the same speed.
"""

import copy
import functools
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from . import extension, interleaved_rows, reads

LINE = 64  # bytes
PARTS = ("weight", "scales", "biases")


def interleave(matrix: mx.array, rows: int) -> mx.array:
    """O×W -> (O/R)×W×R, for words as for scales and biases.

    What the extension does when it loads a model, in one line of MLX.

    Args:
        matrix: O×W.
        rows: R, how many go together: `kernels.interleaved_rows()`.

    Raises:
        ValueError: O is no multiple of R.
    """
    O, W = matrix.shape
    if O % rows != 0:
        raise ValueError(f"interleave: expected a multiple of {rows} rows, got {O}.")
    return mx.contiguous(matrix.reshape(O // rows, rows, W).swapaxes(1, 2))


def by_row(matrix: mx.array) -> mx.array:
    """(O/R)×W×R -> O×W; O×W stays as it is. Any thread may evaluate the result."""
    if matrix.ndim == 2:
        return matrix
    blocks, W, rows = matrix.shape
    stream = _any_thread()
    return mx.reshape(mx.swapaxes(matrix, 1, 2, stream=stream), (blocks * rows, W), stream=stream)


def layer_by_row(mlx_layer: Any) -> Any:
    """A layer with its weights by row, as MLX reads them: itself, or a copy of it."""
    if mlx_layer.weight.ndim == 2:
        return mlx_layer
    layer = copy.copy(mlx_layer)
    for name in PARTS:
        setattr(layer, name, by_row(mlx_layer[name]))
    return layer


def lay_out(mlx_model: Any) -> Any:
    """A model's weights in the order in which this machine's kernels read them.

    The given model stays usable, and its weights stay by row. But its own arrays are let go, layer
    by layer: it gets new ones, which MLX computes from the interleaved weights when they are first
    used. So the weights are in memory once, and a second time only if both models are used.

    Args:
        mlx_model: a model as `mlx_lm.load` returns it, or what `load_weights` returned.

    Returns:
        A tree of the same shape with interleaved arrays, in memory of its own; `mlx_model` itself
        if there is nothing to interleave.
    """
    given = interleavable_layers(mlx_model)
    if not given:
        return mlx_model
    memory = InterleavedMemory(mlx_model)
    laid_out = _same_arrays(mlx_model)
    for layer, own in zip(given, interleavable_layers(laid_out), strict=True):
        memory.interleave_layers(own)
        for name in PARTS:
            setattr(layer, name, by_row(own[name]))
    return laid_out


class InterleavedMemory:
    """One piece of memory, in large pages, for a model's quantized layers that our kernels read.

    Afterwards only the extension can look them up and multiply them. Other layers stay as they are,
    and so does everything where the kernels want rows.

    Args:
        model: an `mlx.nn` module; its weights may still have to be read from a file.
    """

    def __init__(self, model: Any):
        self._rows = interleaved_rows()
        arrays = [layer[name] for layer in interleavable_layers(model) for name in PARTS]
        self._memory = extension().large_pages(sum(map(_room, arrays))) if arrays else None
        self._used = 0

    def interleave_layers(self, part: Any) -> None:
        """Moves the layers of a part of the model here, each part once.

        One array after the other is computed: only one is in memory twice.
        """
        for layer in interleavable_layers(part):
            for name in PARTS:
                matrix = layer[name]
                place = self._rows, self._memory, self._used
                setattr(layer, name, extension().interleave(matrix, *place))
                self._used += _room(matrix)


def interleavable_layers(module: Any) -> list[Any]:
    """The layers of a module that are by row, and that this machine's kernels want interleaved."""
    rows = interleaved_rows()
    if rows == 0:
        return []
    return [
        layer
        for layer in module.modules()
        if "scales" in layer
        and getattr(layer, "mode", "affine") == "affine"
        and reads(layer.bits, layer.group_size, layer.scales.dtype)
        and layer.weight.ndim == 2
        and layer.weight.shape[0] % rows == 0
    ]


def _same_arrays(mlx_model: Any) -> Any:
    """A second tree with the same arrays."""
    arrays: Any = tree_flatten(mlx_model)
    return copy.deepcopy(mlx_model, {id(array): array for _, array in arrays})


def _room(array: mx.array) -> int:
    """How many bytes an array takes, in whole cache lines."""
    return -(-array.nbytes // LINE) * LINE


@functools.cache
def _any_thread() -> mx.Stream:
    """A stream whose operations any thread may evaluate; other streams belong to one thread."""
    return mx.new_thread_unsafe_stream(mx.cpu)
