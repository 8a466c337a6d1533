"""Quantized weights in the order in which the CPU's kernels read them.

The kernels for AVX-512 and AMX multiply a word of sixteen outputs at once, or of a few times as
many. In MLX's layout those words are a row apart in memory. *Interleaved*, the rows are stored word
by word, and words that are multiplied together are neighbours. Results have the same bits, and the
weights take as much memory. An array's shape says which it is: by row it is O×W, interleaved
(O/R)×W×R, where R is how many rows the kernels want together. The matrices of X experts have X in
front of either.

`load_weights` interleaves while it reads. Any other model is laid out when Week 2's or Week 3's is
built from it: `prepack_model`. So both have the same speed.
"""

import copy
import functools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import mlx.core as mx
from mlx.utils import tree_flatten

from . import extension, prepack_rows, supports_quantization
from .mxfp4 import E2M1, bfloat16_to_e8m0

CACHE_LINE_BYTES = 64  # bytes
QUANTIZED_ARRAYS = ("weight", "scales", "biases")

T = TypeVar("T")
# What is known of arrays, by their ids; an id may come again once its array is gone.
WeakIdMap: TypeAlias = dict[int, tuple[weakref.ref[mx.array], T]]


def prepack_weight(matrix: mx.array, rows: int) -> mx.array:
    """O×W -> (O/R)×W×R, for words as for scales and biases.

    What the extension does when it loads a model, in one line of MLX.

    Args:
        matrix: O×W.
        rows: R, how many go together: `kernels.prepack_rows()`.

    Raises:
        ValueError: O is no multiple of R.
    """
    O, W = matrix.shape
    if O % rows != 0:
        raise ValueError(f"prepack_weight: expected a multiple of {rows} rows, got {O}.")
    # [task 4.3.1 prepack]
    return mx.contiguous(matrix.reshape(O // rows, rows, W).swapaxes(1, 2))
    # [/task 4.3.1 prepack]


def to_row_major(matrix: mx.array) -> mx.array:
    """N..×(O/R)×W×R -> N..×O×W. Any thread may evaluate the result."""
    *N, blocks, W, rows = matrix.shape
    stream = _any_thread_stream()
    return mx.reshape(
        mx.swapaxes(matrix, -1, -2, stream=stream), (*N, blocks * rows, W), stream=stream
    )


def is_row_major(mlx_layer: Any) -> bool:
    """Whether a quantized layer is as MLX has it: a row of scales for each row of words."""
    return mlx_layer.weight.shape[:-1] == mlx_layer.scales.shape[:-1]


def row_major_layer(mlx_layer: Any) -> Any:
    """A layer as MLX reads it: by row, and its scales in mxfp4's form. Itself, or a copy of it."""
    if not hasattr(mlx_layer, "scales"):
        return mlx_layer
    is_floating = getattr(mlx_layer, "mode", "affine") == E2M1
    if is_row_major(mlx_layer) and not is_floating:
        return mlx_layer
    layer = copy.copy(mlx_layer)
    if not is_row_major(mlx_layer):
        for name in _array_names(mlx_layer):
            setattr(layer, name, to_row_major(mlx_layer[name]))
    if is_floating:
        layer.scales, layer.mode = bfloat16_to_e8m0(layer.scales), "mxfp4"
    return layer


def is_kernel_supported(mlx_layer: Any) -> bool:
    """Whether the kernels read a quantized layer, by its format and the dtype of its scales."""
    return getattr(mlx_layer, "mode", "affine") in ("affine", E2M1) and supports_quantization(
        mlx_layer.bits, mlx_layer.group_size, mlx_layer.scales.dtype
    )


def prepack_model(mlx_model: Any) -> Any:
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
    given = prepackable_layers(mlx_model)
    if not given:
        return mlx_model
    memory = PrepackedWeights(mlx_model)
    laid_out = _copy_tree(mlx_model)
    for layer, own in zip(given, prepackable_layers(laid_out), strict=True):
        memory.prepack_layers(own)
        for name in _array_names(own):
            setattr(layer, name, to_row_major(own[name]))
    return laid_out


def _lookup(notes: WeakIdMap[T], array: mx.array) -> T | None:
    """What was noted of an array; None if that is nothing, or was of one that is gone."""
    reference, note = notes.get(id(array), (None, None))
    return note if reference is not None and reference() is array else None


class WeightLocations:
    """Where the arrays of a model that were not read yet lie in files.

    It keeps none of them: an array that nobody else has is not looked for any more.
    """

    def __init__(self) -> None:
        self._locations: WeakIdMap[tuple[Path, int, bool]] = {}
        self._readers: WeakIdMap[Callable[[], mx.array]] = {}

    def add(self, array: mx.array, file: Path, begin: int, exclusive: bool = False) -> None:
        """Notes that a lazy array is stored by row in a file, from its byte `begin` on.

        Args:
            array, file, begin: see above.
            exclusive: whether this process reads nothing of what follows it there.
        """
        self._locations[id(array)] = weakref.ref(array), (file, begin, exclusive)

    def add_reader(self, array: mx.array, read: Callable[[], mx.array]) -> None:
        """Notes how a lazy array is read with less effort than by evaluating it."""
        self._readers[id(array)] = weakref.ref(array), read

    def read(self, array: mx.array) -> mx.array:
        """An array's numbers, read now if it is known how; itself if that is not."""
        read = _lookup(self._readers, array)
        return array if read is None else read()

    def materialize(self, module: Any) -> None:
        """Puts what was read in the place of a module's arrays that were not."""
        for part in module.modules():
            for name, array in list(part.items()):
                if isinstance(array, mx.array):
                    setattr(part, name, self.read(array))

    def location_of(self, array: mx.array) -> tuple[Path, int, bool] | None:
        """The file of an array, and the rest of what `add` was told; None if that is not known."""
        return _lookup(self._locations, array)


class PrepackedWeights:
    """One piece of memory, in large pages, for a model's quantized layers that our kernels read.

    Afterwards only the extension can look them up and multiply them. Other layers stay as they are,
    and so does everything where the kernels want rows.

    Args:
        model: an `mlx.nn` module; its weights may still have to be read from a file.
        weight_locations: of those that are, the places; they are read a few rows at a time.
    """

    def __init__(self, model: Any, weight_locations: WeightLocations | None = None):
        self._rows = prepack_rows()
        self._in_files = weight_locations or WeightLocations()
        room = sum(map(_aligned_nbytes, _prepackable_arrays(model)))
        self._memory = extension().large_pages(room) if room else None
        self._used = 0

    def prepack_layers(self, part: Any) -> None:
        """Moves the layers of a part of the model here, each part once.

        One array after the other: where it is not in a file, it is in memory twice meanwhile.

        Args:
            part: a layer of the model, or the whole.
        """
        for layer in prepackable_layers(part):
            for name in _array_names(layer):
                setattr(layer, name, self._interleave(layer[name]))

    def _interleave(self, matrix: mx.array) -> mx.array:
        """N..×O×W -> N..×(O/R)×W×R; the matrices of experts are one tall matrix meanwhile."""
        *N, O, W = matrix.shape
        tall, to = matrix.reshape(-1, W), (self._rows, self._memory, self._used)
        place = self._in_files.location_of(matrix)
        if place is None:
            moved = extension().prepack_weight(self._in_files.read(matrix).reshape(-1, W), *to)
        else:
            file, begin, exclusive = place
            moved = extension().prepack_weight_from_file(tall, str(file), begin, *to, exclusive)
        self._used += _aligned_nbytes(matrix)
        return moved.reshape(*N, O // self._rows, W, self._rows)


def prepackable_layers(module: Any) -> list[Any]:
    """The layers of a module that are by row, and that this machine's kernels want interleaved."""
    rows = prepack_rows()
    if rows == 0:
        return []
    return [
        layer
        for layer in module.modules()
        if "scales" in layer
        and is_kernel_supported(layer)
        and is_row_major(layer)
        and layer.weight.shape[-2] % rows == 0
    ]


def _prepackable_arrays(module: Any) -> list[mx.array]:
    """The arrays of a module that are to be interleaved."""
    layers = prepackable_layers(module)
    return [layer[name] for layer in layers for name in _array_names(layer)]


def _array_names(layer: Any) -> list[str]:
    """The names of a quantized layer's arrays."""
    return [name for name in QUANTIZED_ARRAYS if name in layer]


def _copy_tree(mlx_model: Any) -> Any:
    """A second tree with the same arrays."""
    arrays: Any = tree_flatten(mlx_model)
    return copy.deepcopy(mlx_model, {id(array): array for _, array in arrays})


def _aligned_nbytes(array: mx.array) -> int:
    """How many bytes an array takes, in whole cache lines."""
    return -(-array.nbytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES


@functools.cache
def _any_thread_stream() -> mx.Stream:
    """A stream whose operations any thread may evaluate; other streams belong to one thread."""
    return mx.new_thread_unsafe_stream(mx.cpu)
