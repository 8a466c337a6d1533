"""Page storage: KV pages of all layers, with one block table; ragged batches.

Unlike in a `TinyKvPagedPool`, a page id refers to the same page in every layer's arrays, so one
block table serves all layers. The engine allocates page ids; this module holds the memory and
builds a step's metadata.
"""

from collections.abc import Collection, Sequence
from typing import Any

import mlx.core as mx

from .. import kernels
from .state_storage import StateStorage, release_rows
from .step_plan import AttentionMetadata, StepPlan

Integers = Sequence[int] | mx.array


class RaggedBatch:
    """One step's tokens: T tokens of B sequences, concatenated without padding.

    Args:
        positions: T, each token's position in its sequence.
        slot_mapping: T, each token's slot: page_id · page_size + position % page_size.
        cu_seqlens_q: B+1: sequence s has tokens cu_seqlens_q[s] to cu_seqlens_q[s + 1] − 1.
        context_lens: B, each sequence's length including this step's tokens.
        block_table: B×max_pages, each sequence's pages in order, padded with −1. List rows may
            differ in length.
        state_read_slots: B, slot with the recurrent state before each sequence's first token; −1
            for a new sequence. None for models without recurrent state.
        state_write_slots: T, slot for the state after each token; −1 to not store it. No two tokens
            may write the same slot, and none may write a slot that another sequence reads.
        adapter_ids: T, index of each token's LoRA adapter; −1 for none. None if no token uses one.

    Attributes:
        positions, attention_metadata: the arguments as int32 arrays.

    Raises:
        ValueError: the arguments' lengths are inconsistent.
    """

    def __init__(
        self,
        positions: Integers,
        slot_mapping: Integers,
        cu_seqlens_q: Integers,
        context_lens: Integers,
        block_table: Sequence[Sequence[int]] | mx.array,
        state_read_slots: Sequence[int] | None = None,
        state_write_slots: Sequence[int] | None = None,
        adapter_ids: Sequence[int] | None = None,
    ):
        if not isinstance(block_table, mx.array):
            width = max([1, *map(len, block_table)])
            padded = [[*row, *[-1] * (width - len(row))] for row in block_table]
            block_table = mx.array(padded, dtype=mx.int32).reshape(-1, width)
        slots: Any = slot_mapping.tolist() if isinstance(slot_mapping, mx.array) else slot_mapping
        self.slots: Sequence[int] = slots
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
            size = len(getattr(metadata, name))
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


class PagedStorage:
    """Key and value pages of each layer; a page uses memory once it is written.

    All pages are reserved at once, so the arrays never grow or move. Only `release` returns memory,
    so a page allocator should prefer pages in `resident`.

    Args:
        shapes: for each layer with pages, its number of heads H and head size D; D + 4 for 8-bit
            rows, which end with a 4-byte scale.
        states: state slots for linear-attention layers; None if all layers have pages.

    Attributes:
        key_pages, value_pages: one num_pages×H×page_size×D array per layer with pages. Written in
            place; do not keep references to the arrays.
        resident: pages with physical memory.

    Raises:
        ValueError: `num_pages` or `page_size` is below 1.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, int]],
        num_pages: int,
        page_size: int,
        dtype: mx.Dtype,
        states: StateStorage | None = None,
    ):
        if num_pages < 1 or page_size < 1:
            raise ValueError(
                "PagedStorage: num_pages and page_size must be at least 1, got "
                f"{num_pages} and {page_size}."
            )
        self.num_pages = num_pages
        self.page_size = page_size
        page_shapes = [(num_pages, H, page_size, D) for H, D in shapes]
        self.key_pages = [kernels.reserve_zeros(shape, dtype) for shape in page_shapes]
        self.value_pages = [kernels.reserve_zeros(shape, dtype) for shape in page_shapes]
        self.states = states
        self.resident: set[int] = set()
        self._page_bytes = sum(pages[0].nbytes for pages in self.page_arrays)

    @property
    def arrays(self) -> list[mx.array]:
        """Arrays to evaluate to materialize all writes."""
        states = self.states
        return self.page_arrays if states is None else [*self.page_arrays, *states.arrays]

    @property
    def page_arrays(self) -> list[mx.array]:
        """Key arrays of all layers, then value arrays; element i of each is page i."""
        return [*self.key_pages, *self.value_pages]

    @property
    def nbytes(self) -> int:
        """Bytes of physical memory of all pages and state slots."""
        pages = len(self.resident) * self._page_bytes
        return pages if self.states is None else pages + self.states.nbytes

    def populate(self, num_pages: int, num_slots: int) -> None:
        """Allocates physical memory for the first pages and state slots."""
        for array in self.page_arrays:
            kernels.extension().populate_rows(array, num_pages)
        self.resident.update(range(num_pages))
        if self.states is not None:
            for array in self.states.arrays:
                kernels.extension().populate_rows(array, num_slots)
            self.states.resident.update(range(num_slots))

    def release(self, pages: Collection[int], slots: Collection[int]) -> None:
        """Returns the physical memory of unused pages and state slots; see `release_rows`."""
        release_rows(self.page_arrays, self.resident, pages)
        if self.states is not None:
            release_rows(self.states.arrays, self.states.resident, slots)

    def plan(self, batch: RaggedBatch) -> StepPlan:
        """Plans a step over a ragged batch; slots are the same in every layer."""
        self.resident.update(slot // self.page_size for slot in batch.slots)
        pairs = list(zip(self.key_pages, self.value_pages, strict=True))
        states = self.states
        if states is not None:
            assert batch.attention_metadata.state_read_slots is not None
            states.resident |= batch.written_states
            for layer, conv, state in zip(
                states.layers, states.conv_states, states.states, strict=True
            ):
                pairs.insert(layer, (conv, state))

        def commit(buffers: list[mx.array]) -> None:
            pairs = list(zip(buffers[::2], buffers[1::2], strict=True))
            if states is not None:
                recurrent = [pairs.pop(layer) for layer in reversed(states.layers)][::-1]
                states.conv_states, states.states = map(list, zip(*recurrent, strict=True))
            self.key_pages, self.value_pages = map(list, zip(*pairs, strict=True))

        arrays = [array for pair in pairs for array in pair]
        return StepPlan(batch.attention_metadata, arrays, commit)
