"""Step plans: KV cache writes of all layers, planned before the first layer runs.

A plan separates the step's metadata from the buffers:

    attention_metadata   the new tokens' slots and each sequence's length; differs in every step
    buffers              keys and values, which the step overwrites in place

During the step, each layer gets a `LayerCacheView` instead of its cache, so the layers are a pure
function of arrays, which can be captured as one node of MLX's graph (`kernels/graph_capture.py`).
`paged_storage.py` builds plans for the engine's ragged batches, `kv_cache/planning.py` for the
course's caches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx

from ..kernels.graph_capture import CapturedFunction
from .attention_metadata import AttentionMetadata
from .layer_cache_view import layer_cache_views

# Cosines and sines at the new tokens' positions; a pair for each of the model's RoPEs.
CosSin = tuple[mx.array, ...]
# (x B×L×E, cosines and sines, one cache or view per layer) -> (x, update), both B×L×E
Layers = Callable[..., tuple[mx.array, mx.array]]


@dataclass(frozen=True)
class StepPlan:
    attention_metadata: AttentionMetadata
    # One pair of arrays per layer (keys and values, or convolution and recurrent state), or one
    # pair shared by all layers.
    buffers: list[mx.array]
    commit: Callable[[list[mx.array]], None]  # stores the updated buffers in the caches
    rollback: Callable[[], None] = lambda: None  # undoes the plan if the step fails
    tables: tuple[int, ...] = ()  # each layer's block table in a ragged batch; empty if all share


class PlannedLayers:
    """Runs a model's layers, given as a function, with a step plan.

    Args:
        num_caches: number of layers whose caches the plan updates.
    """

    def __init__(self, layers: Layers, num_caches: int):
        self._layers = layers
        self._num_caches = num_caches
        # Keyed by the names of the metadata arrays and the layers' block tables.
        self._functions: dict[tuple[tuple[str, ...], tuple[int, ...]], Callable[..., Any]] = {}

    def __call__(
        self, x: mx.array, cos_sin: CosSin, step_plan: StepPlan
    ) -> tuple[mx.array, mx.array]:
        """Runs the layers and commits the plan; rolls it back on an error."""
        metadata = step_plan.attention_metadata
        try:
            function = self._function_for(metadata.names, step_plan.tables, len(cos_sin))
            x, update, *buffers = function(x, *cos_sin, *metadata.arrays, *step_plan.buffers)
        except BaseException:
            step_plan.rollback()
            raise
        step_plan.commit(buffers)
        return x, update

    def _function_for(
        self, names: tuple[str, ...], tables: tuple[int, ...], num_angles: int
    ) -> Callable[..., Any]:
        key = names, tables
        if key not in self._functions:
            # A ragged batch may be a single short prompt, so it is captured on the second call.
            # Decode steps are captured on the first: if layers share pages, an uncaptured layer
            # copies the pages that the previous layer's attention has yet to read.
            self._functions[key] = CapturedFunction(
                partial(self._run, *key, num_angles), on_first_call="cu_seqlens_q" not in names
            )
        return self._functions[key]

    def _run(
        self,
        names: tuple[str, ...],
        tables: tuple[int, ...],
        num_angles: int,
        x: mx.array,
        *arrays: mx.array,
    ) -> tuple[mx.array, ...]:
        cos_sin, rest = arrays[:num_angles], arrays[num_angles:]
        attention_metadata = AttentionMetadata(**dict(zip(names, rest, strict=False)))
        buffers = list(rest[len(names) :])
        views = layer_cache_views(attention_metadata, buffers, self._num_caches, tables)
        return *self._layers(x, cos_sin, views), *buffers
