"""Step plans: KV cache writes of all layers, planned before the first layer runs.

A plan separates the step's metadata from the buffers:

    attention_metadata   the new tokens' slots and each sequence's length; differs in every step
    buffers              keys and values, which the step overwrites in place

During the step, each layer gets a `LayerCacheView` instead of its cache, so the layers are a pure
function of arrays, which can be captured as one node of MLX's graph (`kernels/graph_capture.py`).
`paged_storage.py` builds plans for the engine's ragged batches, `kv_cache/planning.py` for the
course's caches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

import mlx.core as mx

from .. import kernels
from ..attention import Mask
from ..attention.paged import PagedKvMetadata, check_paged_mask
from ..kernels.graph_capture import CapturedFunction

# Cosines and sines at the new tokens' positions; a pair for each of the model's RoPEs.
CosSin = tuple[mx.array, ...]
# (x B×L×E, cosines and sines, one cache or view per layer) -> (x, update), both B×L×E
Layers = Callable[..., tuple[mx.array, mx.array]]


@dataclass(frozen=True, eq=False)
class AttentionMetadata:
    """Slots and lengths of a step, as int32 arrays.

    If layers write to different slots, `slot_mapping` and `block_table` have a leading layer axis;
    for a ragged batch, a leading axis of block tables.

    Attributes:
        slot_mapping: dense: B, offset of each sequence's first new token; paged: B×L, each token's
            slot as in `TinyKvPagedPool.write`; ragged batch: T. −1 skips the write.
        context_lens: B, each sequence's length including the new tokens.
        block_table: B×max_pages, as in `PagedKvMetadata`; None for dense caches.
        cu_seqlens_q: B+1, as in `PagedKvMetadata`; None unless the batch is ragged.
        state_read_slots, state_write_slots: B and T, as in `RaggedBatch`; None for models without
            recurrent state.
        adapter_ids: T, as in `RaggedBatch`; None if no request has an adapter.
    """

    slot_mapping: mx.array
    context_lens: mx.array
    block_table: mx.array | None = None
    cu_seqlens_q: mx.array | None = None
    state_read_slots: mx.array | None = None
    state_write_slots: mx.array | None = None
    adapter_ids: mx.array | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the fields that are not None, in order of declaration."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) is not None)

    @property
    def arrays(self) -> list[mx.array]:
        return [getattr(self, name) for name in self.names]

    def for_layer(self, layer: int) -> "AttentionMetadata":
        """Selects a layer's slots and block table, if layers differ in them.

        For a ragged batch, `layer` is the index of its block table.
        """
        if self.cu_seqlens_q is not None and self.slot_mapping.ndim == 1:
            return replace(self, slot_mapping=self.slot_mapping[None])  # 1×T, a batch of one
        if self.block_table is None or self.block_table.ndim == 2:
            return self
        row = slice(layer, layer + 1)
        if self.cu_seqlens_q is not None:
            table = self.block_table[row].squeeze(0)
            return replace(self, slot_mapping=self.slot_mapping[row], block_table=table)
        return replace(
            self,
            slot_mapping=self.slot_mapping[row].squeeze(0),
            block_table=self.block_table[row].squeeze(0),
        )


@dataclass(frozen=True)
class StepPlan:
    attention_metadata: AttentionMetadata
    # One pair of arrays per layer (keys and values, or convolution and recurrent state), or one
    # pair shared by all layers.
    buffers: list[mx.array]
    commit: Callable[[list[mx.array]], None]  # stores the updated buffers in the caches
    rollback: Callable[[], None] = lambda: None  # undoes the plan if the step fails
    tables: tuple[int, ...] = ()  # each layer's block table in a ragged batch; empty if all share


class LayerCacheView:
    """Substitute for a layer's cache during one planned step.

    Args:
        buffers: all layers' buffers; writes replace the arrays in this list.
        index: index of the layer's keys in `buffers`; the values follow.
        attention_metadata: the layer's slots and lengths.
    """

    def __init__(self, buffers: list[mx.array], index: int, attention_metadata: AttentionMetadata):
        self._buffers = buffers
        self._keys, self._values = index, index + 1
        self.attention_metadata = attention_metadata

    @property
    def buffers(self) -> list[mx.array]:
        """The layer's keys and values, or its convolution and recurrent state."""
        return [self._buffers[self._keys], self._buffers[self._values]]

    @buffers.setter
    def buffers(self, pair: Sequence[mx.array]) -> None:
        self._buffers[self._keys], self._buffers[self._values] = pair

    def append(self, key: mx.array, value: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        """See `TinyKvCache`: writes to dense buffers B×H×capacity×D."""
        buffers, keys, values = self._buffers, self._keys, self._values
        slots = self.attention_metadata.slot_mapping
        buffers[keys] = kernels.cache_write(buffers[keys], key, slots, overwrite=True)
        buffers[values] = kernels.cache_write(buffers[values], value, slots, overwrite=True)
        return buffers[keys], buffers[values], self.attention_metadata.context_lens

    def update_and_fetch_paged(
        self,
        key: mx.array | None,
        value: mx.array | None,
        mask_length: int | None = None,
        mask: Mask = None,
    ) -> PagedKvMetadata:
        """See `TinyKvPagedCache`: writes to pages P×H×page_size×D.

        Args:
            key, value: B×H×L×D; 1×H×T×D for a ragged batch. None if another layer of the step has
                written them.
            mask_length: see `TinyKvPagedCache`.
            mask: None or "causal", returned in the metadata; "causal" for a ragged batch.

        Raises:
            ValueError: an unsupported mask, or key and value do not match the pages.
        """
        metadata = self.attention_metadata
        if not (isinstance(mask, str) and mask == "causal"):
            check_paged_mask(mask)
            if metadata.cu_seqlens_q is not None:
                raise ValueError(
                    "paged KV cache: mask must be 'causal' for a ragged batch, got None."
                )
        assert metadata.block_table is not None
        buffers, keys, values = self._buffers, self._keys, self._values
        if key is not None:
            # [task 3.3.1 ragged]
            slots = metadata.slot_mapping
            buffers[keys] = kernels.paged_cache_write(buffers[keys], key, slots, overwrite=True)
            buffers[values] = kernels.paged_cache_write(
                buffers[values], value, slots, overwrite=True
            )
            # [/task 3.3.1 ragged]
        return PagedKvMetadata(
            buffers[keys],
            buffers[values],
            metadata.block_table,
            metadata.context_lens,
            buffers[keys].shape[2],
            mask,
            metadata.cu_seqlens_q,
        )


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
