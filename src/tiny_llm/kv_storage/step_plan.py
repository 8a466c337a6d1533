"""Step plans: KV cache writes of all layers, planned before the first layer runs.

A plan separates the step's metadata from the buffers:

    attention_metadata   the new tokens' slots and each sequence's length; differs in every step
    buffers              keys and values, which the step overwrites in place

During the step, each layer gets a `LayerCacheView` instead of its cache, so the layers are a pure
function of arrays (`planned_layers.py`).
`paged_storage.py` builds plans for the engine's ragged batches, `kv_cache/planning.py` for the
course's caches.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property

import mlx.core as mx

# Cosines and sines at the new tokens' positions, a pair per RoPE, then Gemma 4's per-layer inputs.
LayerInputs = tuple[mx.array, ...]


@dataclass(frozen=True, eq=False)
class AttentionMetadata:
    """Slots and lengths of a step, as int32 arrays.

    If layers write to different slots, `slot_mapping` and `block_table` have a leading axis over
    layers, or over block tables for a ragged batch.

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
        """Selects a layer's slots and block table, if they differ between layers.

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
    tables: tuple[int, ...] = ()  # each layer's block table; empty if layers share one
