"""Planned layers: a model's layers as a pure function of arrays, run with a step plan.

The function can be captured as one node of MLX's graph (`kernels/graph_capture.py`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mlx.core as mx

from ..kernels.graph_capture import CapturedFunction
from .layer_cache import LayerCacheView
from .step_plan import AttentionMetadata, LayerInputs, StepPlan

# (x B×L×E, `LayerInputs`, one cache or view per layer) -> (x, update), both B×L×E
Layers = Callable[..., tuple[mx.array, mx.array]]


class PlannedLayers:
    """Runs a model's layers, given as a function, with a step plan.

    Args:
        num_caches: number of layers whose caches the plan updates.
    """

    def __init__(self, layers: Layers, num_caches: int):
        self._layers = layers
        self._num_caches = num_caches
        # Keyed by (names of the metadata arrays, each layer's block table).
        self._functions: dict[tuple[tuple[str, ...], tuple[int, ...]], Callable[..., Any]] = {}

    def __call__(
        self, x: mx.array, inputs: LayerInputs, step_plan: StepPlan
    ) -> tuple[mx.array, mx.array]:
        """Runs the layers and commits the plan; rolls it back on an error."""
        metadata = step_plan.attention_metadata
        try:
            function = self._function_for(metadata.names, step_plan.tables, len(inputs))
            x, update, *buffers = function(x, *inputs, *metadata.arrays, *step_plan.buffers)
        except BaseException:
            step_plan.rollback()
            raise
        step_plan.commit(buffers)
        return x, update

    def _function_for(
        self, names: tuple[str, ...], tables: tuple[int, ...], num_inputs: int
    ) -> Callable[..., Any]:
        key = names, tables
        if key not in self._functions:
            # A ragged batch may be a single short prompt, so it is captured on the second call.
            # Decode steps are captured on the first: if layers share pages, an uncaptured layer
            # copies the pages that the previous layer's attention has yet to read.
            self._functions[key] = CapturedFunction(
                partial(self._run, *key, num_inputs), on_first_call="cu_seqlens_q" not in names
            )
        return self._functions[key]

    def _run(
        self,
        names: tuple[str, ...],
        tables: tuple[int, ...],
        num_inputs: int,
        x: mx.array,
        *arrays: mx.array,
    ) -> tuple[mx.array, ...]:
        inputs, rest = arrays[:num_inputs], arrays[num_inputs:]
        attention_metadata = AttentionMetadata(**dict(zip(names, rest, strict=False)))
        buffers = list(rest[len(names) :])
        views = layer_cache_views(attention_metadata, buffers, self._num_caches, tables)
        return *self._layers(x, inputs, views), *buffers


def layer_cache_views(
    attention_metadata: AttentionMetadata,
    buffers: list[mx.array],
    num_layers: int,
    tables: Sequence[int] = (),
) -> list[LayerCacheView]:
    """Creates one cache view per layer; the views modify `buffers`."""
    is_shared = len(buffers) == 2
    indices = tables or range(num_layers)
    by_index = {index: attention_metadata.for_layer(index) for index in indices}
    return [
        LayerCacheView(buffers, 0 if is_shared else 2 * layer, by_index[index])
        for layer, index in enumerate(indices)
    ]
