"""Quantized weights in the order in which the CPU's kernels read them.

The kernels for AVX-512 and AMX multiply a word of sixteen outputs at once, or of a few times as
many. In MLX's layout those words are a row apart in memory. *Interleaved*, the rows are stored word
by word, and words that are multiplied together are neighbours. Results have the same bits, and the
weights take as much memory. An array's shape says which it is: by row it is O×W, interleaved
(O/R)×W×R, where R is how many rows the kernels want together. The matrices of X experts have X in
front of either.

`load_weights` interleaves while it reads. Any other model is laid out when Week 2's or Week 3's is
built from it: `lay_out`. So both have the same speed.
"""

import copy
import functools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import mlx.core as mx
from mlx.utils import tree_flatten

from . import extension, interleaved_rows, reads
from .floating_point import E2M1, exponents_of

LINE = 64  # bytes
PARTS = ("weight", "scales", "biases")

T = TypeVar("T")
# What is known of arrays, by their ids; an id may come again once its array is gone.
Notes: TypeAlias = dict[int, tuple[weakref.ref[mx.array], T]]


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
    # [task 4.3.1 interleave]
    return mx.contiguous(matrix.reshape(O // rows, rows, W).swapaxes(1, 2))
    # [/task 4.3.1 interleave]


def by_row(matrix: mx.array) -> mx.array:
    """N..×(O/R)×W×R -> N..×O×W. Any thread may evaluate the result."""
    *N, blocks, W, rows = matrix.shape
    stream = _any_thread()
    return mx.reshape(
        mx.swapaxes(matrix, -1, -2, stream=stream), (*N, blocks * rows, W), stream=stream
    )


def is_by_row(mlx_layer: Any) -> bool:
    """Whether a quantized layer is as MLX has it: a row of scales for each row of words."""
    return mlx_layer.weight.shape[:-1] == mlx_layer.scales.shape[:-1]


def layer_by_row(mlx_layer: Any) -> Any:
    """A layer as MLX reads it: by row, and its scales in mxfp4's form. Itself, or a copy of it."""
    if not hasattr(mlx_layer, "scales"):
        return mlx_layer
    is_floating = getattr(mlx_layer, "mode", "affine") == E2M1
    if is_by_row(mlx_layer) and not is_floating:
        return mlx_layer
    layer = copy.copy(mlx_layer)
    if not is_by_row(mlx_layer):
        for name in _parts_of(mlx_layer):
            setattr(layer, name, by_row(mlx_layer[name]))
    if is_floating:
        layer.scales, layer.mode = exponents_of(layer.scales), "mxfp4"
    return layer


def are_read(mlx_layer: Any) -> bool:
    """Whether the kernels read a quantized layer, by its format and the dtype of its scales."""
    return getattr(mlx_layer, "mode", "affine") in ("affine", E2M1) and reads(
        mlx_layer.bits, mlx_layer.group_size, mlx_layer.scales.dtype
    )


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
        for name in _parts_of(own):
            setattr(layer, name, by_row(own[name]))
    return laid_out


def _noted(notes: Notes[T], array: mx.array) -> T | None:
    """What was noted of an array; None if that is nothing, or was of one that is gone."""
    reference, note = notes.get(id(array), (None, None))
    return note if reference is not None and reference() is array else None


class InFiles:
    """Where the arrays of a model that were not read yet lie in files.

    It keeps none of them: an array that nobody else has is not looked for any more.
    """

    def __init__(self) -> None:
        self._places: Notes[tuple[Path, int, bool]] = {}
        self._readers: Notes[Callable[[], mx.array]] = {}

    def add(self, array: mx.array, file: Path, begin: int, alone: bool = False) -> None:
        """Notes that a lazy array is stored by row in a file, from its byte `begin` on.

        Args:
            array, file, begin: see above.
            alone: whether this process reads nothing of what follows it there.
        """
        self._places[id(array)] = weakref.ref(array), (file, begin, alone)

    def add_reader(self, array: mx.array, read: Callable[[], mx.array]) -> None:
        """Notes how a lazy array is read with less effort than by evaluating it."""
        self._readers[id(array)] = weakref.ref(array), read

    def read(self, array: mx.array) -> mx.array:
        """An array's numbers, read now if it is known how; itself if that is not."""
        read = _noted(self._readers, array)
        return array if read is None else read()

    def fill(self, module: Any) -> None:
        """Puts what was read in the place of a module's arrays that were not."""
        for part in module.modules():
            for name, array in list(part.items()):
                if isinstance(array, mx.array):
                    setattr(part, name, self.read(array))

    def place_of(self, array: mx.array) -> tuple[Path, int, bool] | None:
        """The file of an array, and the rest of what `add` was told; None if that is not known."""
        return _noted(self._places, array)


class InterleavedMemory:
    """One piece of memory, in large pages, for a model's quantized layers that our kernels read.

    Afterwards only the extension can look them up and multiply them. Other layers stay as they are,
    and so does everything where the kernels want rows.

    Args:
        model: an `mlx.nn` module; its weights may still have to be read from a file.
        in_files: of those that are, the places; they are read a few rows at a time.
    """

    def __init__(self, model: Any, in_files: InFiles | None = None):
        self._rows = interleaved_rows()
        self._in_files = in_files or InFiles()
        room = sum(map(_room, _arrays_of(model)))
        self._memory = extension().large_pages(room) if room else None
        self._used = 0

    def interleave_layers(self, part: Any) -> None:
        """Moves the layers of a part of the model here, each part once.

        One array after the other: where it is not in a file, it is in memory twice meanwhile.

        Args:
            part: a layer of the model, or the whole.
        """
        for layer in interleavable_layers(part):
            for name in _parts_of(layer):
                setattr(layer, name, self._interleave(layer[name]))

    def _interleave(self, matrix: mx.array) -> mx.array:
        """N..×O×W -> N..×(O/R)×W×R; the matrices of experts are one tall matrix meanwhile."""
        *N, O, W = matrix.shape
        tall, to = matrix.reshape(-1, W), (self._rows, self._memory, self._used)
        place = self._in_files.place_of(matrix)
        if place is None:
            moved = extension().interleave(self._in_files.read(matrix).reshape(-1, W), *to)
        else:
            file, begin, alone = place
            moved = extension().interleave_file(tall, str(file), begin, *to, alone)
        self._used += _room(matrix)
        return moved.reshape(*N, O // self._rows, W, self._rows)


def interleavable_layers(module: Any) -> list[Any]:
    """The layers of a module that are by row, and that this machine's kernels want interleaved."""
    rows = interleaved_rows()
    if rows == 0:
        return []
    return [
        layer
        for layer in module.modules()
        if "scales" in layer
        and are_read(layer)
        and is_by_row(layer)
        and layer.weight.shape[-2] % rows == 0
    ]


def _arrays_of(module: Any) -> list[mx.array]:
    """The arrays of a module that are to be interleaved."""
    layers = interleavable_layers(module)
    return [layer[name] for layer in layers for name in _parts_of(layer)]


def _parts_of(layer: Any) -> list[str]:
    """The names of a quantized layer's arrays."""
    return [name for name in PARTS if name in layer]


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
