"""Step plans: KV cache writes of all layers, planned before the first layer runs.

A plan separates the step's metadata from the buffers:

    attention_metadata   the new tokens' slots and each sequence's length; differs in every step
    buffers              keys and values, which the step overwrites in place

During the step, each layer gets a `LayerCacheView` instead of its cache, so the layers are a pure
function of arrays. `paged_storage.py` builds plans for the engine's ragged batches and runs the
layers, `kv_cache/planning.py` builds plans for the course's caches.
"""

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain
from typing import Any

import mlx.core as mx

from .. import kernels

# Cosines and sines at the new tokens' positions, a pair per RoPE, then Gemma 4's per-layer inputs.
LayerInputs = tuple[mx.array, ...]

Integers = Sequence[int] | mx.array


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


class RaggedBatch:
    """One step's tokens: T tokens of B sequences, concatenated without padding.

    With several block tables, `slot_mapping` and `block_table` have one entry per table.

    Args:
        positions: T, each token's position in its sequence.
        slot_mapping: T, each token's slot: page_id · page_size + position % page_size.
        cu_seqlens_q: B+1: sequence s has tokens cu_seqlens_q[s] to cu_seqlens_q[s + 1] − 1.
        context_lens: B, each sequence's length including this step's tokens.
        block_table: B×max_pages, each sequence's pages in order, padded with −1. List rows may
            differ in length.
        state_read_slots: B, slot with the recurrent state before each sequence's first token; −1
            for a new sequence. None for models without recurrent state.
        state_write_slots: T, slot for the state after each token; −1 discards the state. No two
            tokens may write the same slot, and none may write a slot that another sequence reads.
        adapter_ids: T, index of each token's LoRA adapter; −1 for none. None if no token uses one.

    Attributes:
        positions, attention_metadata: the arguments as int32 arrays.

    Raises:
        ValueError: the arguments' lengths are inconsistent.
    """

    def __init__(
        self,
        positions: Integers,
        slot_mapping: Integers | Sequence[Sequence[int]],
        cu_seqlens_q: Integers,
        context_lens: Integers,
        block_table: Sequence[Sequence[int]] | Sequence[Sequence[Sequence[int]]] | mx.array,
        state_read_slots: Sequence[int] | None = None,
        state_write_slots: Sequence[int] | None = None,
        adapter_ids: Sequence[int] | None = None,
    ):
        slots: Any = slot_mapping.tolist() if isinstance(slot_mapping, mx.array) else slot_mapping
        has_tables = bool(slots) and not isinstance(slots[0], int)
        self.slots: Sequence[Sequence[int]] = slots if has_tables else [slots]  # by table
        if not isinstance(block_table, mx.array):
            rows: Any = chain(*block_table) if has_tables else block_table
            block_table = _padded(list(rows), *([len(slots)] if has_tables else []))
        self.written_states = {slot for slot in state_write_slots or () if slot >= 0}
        self.positions = kernels.as_int32(positions)
        optional = (state_read_slots, state_write_slots, adapter_ids)
        self.attention_metadata = metadata = AttentionMetadata(
            kernels.as_int32(slot_mapping),
            kernels.as_int32(context_lens),
            block_table,
            kernels.as_int32(cu_seqlens_q),
            *(None if x is None else kernels.as_int32(x) for x in optional),
        )
        T, B = self.num_tokens, self.num_seqs
        expected = {
            "slot_mapping": T,
            "block_table": B,
            "cu_seqlens_q": B + 1,
            "state_read_slots": B,
            "state_write_slots": T,
            "adapter_ids": T,
        }
        for name in metadata.names:
            shape = getattr(metadata, name).shape
            size = shape[-2 if name == "block_table" else -1]
            if size != expected.get(name, size):
                raise ValueError(
                    f"RaggedBatch: {T} tokens of {B} sequences require {expected[name]} entries of "
                    f"{name}, got {size}."
                )

    @property
    def num_tokens(self) -> int:
        return self.positions.size

    @property
    def num_seqs(self) -> int:
        return self.attention_metadata.context_lens.size


def _padded(rows: Sequence[Sequence[int]], *num_tables: int) -> mx.array:
    """Rows padded with −1, as int32: B×max_pages, or G×B×max_pages for G tables."""
    width = max([1, *map(len, rows)])
    padded = array("i")
    for row in rows:
        padded.extend(row)
        padded.extend([-1] * (width - len(row)))
    shape = *num_tables, len(rows) // math.prod(num_tables), width
    if not rows:
        return mx.zeros(shape, mx.int32)
    return mx.array(memoryview(padded).cast("B").cast("i", shape))  # type: ignore[arg-type]


@dataclass(frozen=True)
class StepPlan:
    attention_metadata: AttentionMetadata
    # One pair of arrays per layer (keys and values, or convolution and recurrent state), or one
    # pair shared by all layers.
    buffers: list[mx.array]
    commit: Callable[[list[mx.array]], None]  # stores the updated buffers in the caches
    rollback: Callable[[], None] = lambda: None  # undoes the plan if the step fails
    tables: tuple[int, ...] = ()  # each layer's block table; empty if layers share one
