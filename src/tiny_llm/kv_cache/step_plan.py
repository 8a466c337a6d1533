"""Where the tokens of one step go, in all layers: planned once, before the first layer runs.

A plan separates what changes from step to step from what stays:

    places    the numbers: where each new token is written, and how many tokens each sequence has
    buffers   the keys and values themselves, which the step overwrites in place

During the step each layer has a writer in place of its cache. Afterwards the buffers, which now
have the new tokens, go back to where they came from (`StepPlan.commit`).

So the layers are a function of arrays alone, and a function of arrays can be recorded: a decode
step then is one node of MLX's graph (`kernels/graph_capture.py`). The plans themselves are in
`planning.py` and, for an engine's ragged batches, in `paged_storage.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import mlx.core as mx

from .. import kernels
from ..attention import Mask
from ..kernels.graph_capture import CapturedFunction
from .paged import PagedKvMetadata, check_paged_mask

CosSin = tuple[mx.array, mx.array]
# (x B×L×E, cosines and sines, a cache or writer for each layer) -> (x, update), both B×L×E
Layers = Callable[[mx.array, CosSin, Sequence[Any]], tuple[mx.array, mx.array]]


@dataclass(frozen=True, eq=False)
class AttentionMetadata:
    """Where the new tokens go: int32 arrays.

    Layers that write to different places have one more dimension in front.

    Attributes:
        slots: in buffers B, each sequence's first new place; in pages B×L, each token's place as
            `TinyKvPagedPool.write` takes it; T for a ragged batch. −1 writes nothing.
        context_lens: B, how many tokens each sequence has with the new ones.
        block_table: B×max_pages, as in `PagedKvMetadata`; None for buffers.
        cu_seqlens_q: B+1, as in `PagedKvMetadata`; None but for a ragged batch.
    """

    slots: mx.array
    context_lens: mx.array
    block_table: mx.array | None = None
    cu_seqlens_q: mx.array | None = None

    @property
    def arrays(self) -> list[mx.array]:
        """The fields that are not None, in order; `AttentionMetadata(*arrays)` restores it."""
        values = (getattr(self, field.name) for field in fields(self))
        return [value for value in values if value is not None]

    def for_layer(self, layer: int) -> "AttentionMetadata":
        """One layer's."""
        if self.cu_seqlens_q is not None:
            return replace(self, slots=self.slots[None])  # 1×T, as a batch of one
        if self.block_table is None or self.block_table.ndim == 2:
            return self
        own = slice(layer, layer + 1)
        slots, block_table = self.slots[own].squeeze(0), self.block_table[own].squeeze(0)
        return replace(self, slots=slots, block_table=block_table)


NUM_RAGGED_ARRAYS = len(fields(AttentionMetadata))  # only a ragged batch has all of them


@dataclass(frozen=True)
class StepPlan:
    """One step's plan.

    Attributes:
        attention_metadata: where the new tokens go.
        buffers: keys and values of each layer in turn; or one pair that all layers share.
        commit: takes the buffers back, with the new tokens.
        rollback: makes the caches what they were before the plan, if the step fails.
    """

    attention_metadata: AttentionMetadata
    buffers: list[mx.array]
    commit: Callable[[list[mx.array]], None]
    rollback: Callable[[], None] = lambda: None


class LayerCacheView:
    """What attention asks of a cache, for one layer and one step.

    Args:
        buffers: what the layer writes into; the new arrays replace the old ones in this list.
        index: of the layer's keys in `buffers`; its values are the next.
        attention_metadata: where the new tokens go, in this layer.
    """

    def __init__(self, buffers: list[mx.array], index: int, attention_metadata: AttentionMetadata):
        self._buffers = buffers
        self._keys, self._values = index, index + 1
        self._attention_metadata = attention_metadata

    @property
    def attention_metadata(self) -> AttentionMetadata:
        """Where the new tokens go."""
        return self._attention_metadata

    @property
    def buffers(self) -> list[mx.array]:
        """The layer's keys and values; may be set to those with the new tokens."""
        return [self._buffers[self._keys], self._buffers[self._values]]

    @buffers.setter
    def buffers(self, pair: Sequence[mx.array]) -> None:
        self._buffers[self._keys], self._buffers[self._values] = pair

    def append(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """See `TinyKvCache`: for buffers B×H×C×D."""
        buffers, keys, values, slots = (
            self._buffers,
            self._keys,
            self._values,
            self._attention_metadata.slots,
        )
        buffers[keys] = kernels.cache_write(buffers[keys], key, slots, overwrite=True)
        buffers[values] = kernels.cache_write(buffers[values], value, slots, overwrite=True)
        return buffers[keys], buffers[values], self._attention_metadata.context_lens

    def update_and_fetch_paged(
        self,
        key: mx.array,
        value: mx.array,
        mask_length: int | None = None,
        mask: Mask = None,
    ) -> PagedKvMetadata:
        """See `TinyKvPagedCache`: for pages P×H×page_size×D.

        Args:
            key: B×H×L×D; 1×H×T×D for a ragged batch.
            value: as `key`.
            mask_length: not used.
            mask: None or "causal", passed through; "causal" for a ragged batch.

        Raises:
            ValueError: another mask, or keys and values that the pages cannot hold.
        """
        check_paged_mask(mask)
        attention_metadata = self._attention_metadata
        if mask is None and attention_metadata.cu_seqlens_q is not None:
            raise ValueError("paged KV cache: a ragged batch is causal; give mask='causal'.")
        assert attention_metadata.block_table is not None
        # [task 3.3.1 ragged]
        buffers, keys, values, slots = (
            self._buffers,
            self._keys,
            self._values,
            attention_metadata.slots,
        )
        buffers[keys] = kernels.paged_cache_write(buffers[keys], key, slots, overwrite=True)
        buffers[values] = kernels.paged_cache_write(buffers[values], value, slots, overwrite=True)
        return PagedKvMetadata(
            buffers[keys],
            buffers[values],
            attention_metadata.block_table,
            attention_metadata.context_lens,
            buffers[keys].shape[2],
            mask,
            attention_metadata.cu_seqlens_q,
        )
        # [/task 3.3.1 ragged]


class PlannedLayers:
    """A model's layers, run by plan.

    Args:
        layers: runs all layers.
        num_layers: how many there are.
    """

    def __init__(self, layers: Layers, num_layers: int):
        self._layers = layers
        self._num_layers = num_layers
        self._functions: dict[int, Callable[..., Any]] = {}  # by how many arrays the places are

    def __call__(
        self, x: mx.array, cos_sin: CosSin, step_plan: StepPlan
    ) -> tuple[mx.array, mx.array]:
        """What the layers return; the new keys and values are where `step_plan` says."""
        attention_metadata = step_plan.attention_metadata.arrays
        try:
            function = self._function_of(len(attention_metadata))
            x, update, *buffers = function(x, *cos_sin, *attention_metadata, *step_plan.buffers)
        except BaseException:
            step_plan.rollback()
            raise
        step_plan.commit(buffers)
        return x, update

    def _function_of(self, num_metadata_arrays: int) -> Callable[..., Any]:
        """The layers as a function of arrays, for plans of one kind."""
        if num_metadata_arrays not in self._functions:
            # A ragged batch may be a short prompt alone. Other plans are those of decode steps, and
            # layers that share their pages have to be recorded at once: as single nodes, each of
            # them would copy the pages, which the attention before it is still to read.
            self._functions[num_metadata_arrays] = CapturedFunction(
                partial(self._run, num_metadata_arrays),
                on_first_call=num_metadata_arrays < NUM_RAGGED_ARRAYS,
            )
        return self._functions[num_metadata_arrays]

    def _run(
        self, num_metadata_arrays: int, x: mx.array, cos: mx.array, sin: mx.array, *rest: mx.array
    ) -> tuple[mx.array, ...]:
        attention_metadata, buffers = (
            AttentionMetadata(*rest[:num_metadata_arrays]),
            list(rest[num_metadata_arrays:]),
        )
        writers = layer_cache_views(attention_metadata, buffers, self._num_layers)
        return *self._layers(x, (cos, sin), writers), *buffers


def layer_cache_views(
    attention_metadata: AttentionMetadata, buffers: list[mx.array], num_layers: int
) -> list[LayerCacheView]:
    """What each layer is given as its cache.

    Args:
        attention_metadata, buffers: as in `StepPlan`; the list is changed by the writers.
        num_layers: how many layers there are.
    """
    is_shared = len(buffers) == 2
    return [
        LayerCacheView(buffers, 0 if is_shared else 2 * layer, attention_metadata.for_layer(layer))
        for layer in range(num_layers)
    ]
