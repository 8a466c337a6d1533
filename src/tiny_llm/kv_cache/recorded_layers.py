"""A decode step's layers as one node of the graph: `Recorded`, for functions that write to caches.

A recording knows arrays and nothing else, so a step is put as a function of arrays: where the new
tokens go is an array of numbers, and the buffers that they are written into go in and come out. The
caches' own books, how many tokens there are and when room must be made, are kept outside. Inside,
the layers are given caches that have only what attention asks of one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from .. import kernels
from ..kernels.recorded import Recorded
from .batching import BatchingKvCache
from .full import TinyKvFullCache

Rotation = tuple[mx.array, mx.array]
# (x B×L×E, cosines and sines, a cache for each layer) -> (x, update), both B×L×E
Layers = Callable[[mx.array, Rotation, Sequence[Any]], tuple[mx.array, mx.array]]


@dataclass(frozen=True)
class Step:
    """Where a step's tokens go.

    Attributes:
        numbers: arrays that say where; other ones in the next step.
        buffers: keys and values, which the step writes into.
        caches: (numbers, buffers) -> a cache for each layer. What the caches write into replaces
            the array in the list `buffers`. Called when a step is recorded, for all of its kind.
        finish: takes the buffers that have the new tokens.
        undo: makes the caches what they were before the step was planned, if it fails.
    """

    numbers: list[mx.array]
    buffers: list[mx.array]
    caches: Callable[[list[mx.array], list[mx.array]], Sequence[Any]]
    finish: Callable[[list[mx.array]], None]
    undo: Callable[[], None] = lambda: None


class RecordedLayers:
    """The layers of a model, from one node of the graph if it is known where a step's tokens go.

    If it is not, it is the function. The results are the same to the last bit.

    Args:
        layers: runs all layers.
        step: (a cache for each layer, B, L) -> the step of B·L more tokens, or None.
    """

    def __init__(self, layers: Layers, step: Callable[[Sequence[Any], int, int], Step | None]):
        self._layers = layers
        self._step = step
        self._recorded: dict[Any, Recorded] = {}  # for each kind of steps

    def __call__(
        self, x: mx.array, rotation: Rotation, caches: Sequence[Any]
    ) -> tuple[mx.array, mx.array]:
        """What the layers return."""
        B, L, _ = x.shape
        step = self._step(caches, B, L) if Recorded.pays(x) else None
        if step is None:
            return self._layers(x, rotation, caches)
        if step.caches not in self._recorded:
            self._recorded[step.caches] = Recorded(self._function(step))
        recorded = self._recorded[step.caches]
        try:
            x, update, *buffers = recorded(x, *rotation, *step.numbers, *step.buffers)
        except BaseException:
            step.undo()
            raise
        step.finish(buffers)
        return x, update

    def _function(self, step: Step) -> Callable[..., tuple[mx.array, ...]]:
        """The layers as a function of arrays, for steps of one kind."""
        make_caches, count = step.caches, len(step.numbers)

        def function(x: mx.array, cos: mx.array, sin: mx.array, *rest: mx.array) -> Any:
            buffers = list(rest[count:])
            caches = make_caches(list(rest[:count]), buffers)
            return *self._layers(x, (cos, sin), caches), *buffers

        return function


def dense_step(caches: Sequence[Any], B: int, L: int) -> Step | None:
    """`Step` of dense caches; None if they are not, must make room, or differ in their lengths."""
    if not all(isinstance(cache, TinyKvFullCache | BatchingKvCache) for cache in caches):
        return None
    offsets = caches[0].next_offsets(L)
    if offsets is None or len(offsets) != B:
        return None
    if any(cache.next_offsets(L) != offsets for cache in caches[1:]):
        return None

    def finish(buffers: list[mx.array]) -> None:
        for cache, keys, values in zip(caches, buffers[::2], buffers[1::2], strict=True):
            cache.take(keys, values, L)

    context_lens = [0 if offset < 0 else offset + L for offset in offsets]
    numbers = [mx.array(x, dtype=mx.int32) for x in (offsets, context_lens)]
    return Step(numbers, [x for cache in caches for x in cache.state], _dense_caches, finish)


def _dense_caches(numbers: list[mx.array], buffers: list[mx.array]) -> list["_DenseRecording"]:
    return [_DenseRecording(buffers, index, *numbers) for index in range(0, len(buffers), 2)]


class _DenseRecording:
    """What attention asks of a dense cache, whose keys and values are buffers[index] and the next.

    Args:
        buffers: B×H×C×D each.
        index: of the keys.
        offsets: B int32, where the new tokens go.
        context_lens: B int32, how many there are then.
    """

    def __init__(
        self, buffers: list[mx.array], index: int, offsets: mx.array, context_lens: mx.array
    ):
        self._buffers, self._index = buffers, index
        self._offsets, self._context_lens = offsets, context_lens

    def append(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """See `TinyKvCache`."""
        buffers, keys, values = self._buffers, self._index, self._index + 1
        buffers[keys] = kernels.cache_write(buffers[keys], key, self._offsets)
        buffers[values] = kernels.cache_write(buffers[values], value, self._offsets)
        return buffers[keys], buffers[values], self._context_lens
