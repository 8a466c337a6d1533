"""Page storage: KV pages of all layers, with one block table or several; ragged batches.

Unlike in a `TinyKvPagedPool`, a page id refers to the same page in every layer's arrays, so layers
share block tables (`kv_layout.py`). The engine allocates page ids; this module holds the memory and
builds a step's metadata.
"""

import math
from array import array
from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

import mlx.core as mx

from .. import kernels
from .kv_layout import KvLayout
from .state_storage import StateStorage, release_rows
from .step_plan import AttentionMetadata, StepPlan

Integers = Sequence[int] | mx.array


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


def _with_pages(pages: mx.array, page_ids: Sequence[int], rows: mx.array) -> mx.array:
    """Writes N×bytes uint8 to N pages, in place even if another array shares their memory."""
    dtype, N = pages.dtype, len(page_ids)
    if dtype == mx.int8:  # `paged_cache_write` would quantize the rows again
        pages = mx.view(pages, mx.bfloat16)
    _, H, tokens, D = pages.shape
    written = mx.view(mx.contiguous(rows), pages.dtype).reshape(N, H, tokens, D)
    slots = mx.array(list(page_ids), mx.int32)[:, None] * tokens + mx.arange(tokens, dtype=mx.int32)
    return mx.view(kernels.paged_cache_write(pages, written, slots, overwrite=True), dtype)


class PagedStorage:
    """Key and value pages of each layer; a page uses physical memory once it is written.

    All pages are reserved at once, so the arrays never grow or move. Only `release` returns memory,
    so a page allocator should prefer pages in `resident`.

    Args:
        layout: with row widths as `kv_row_width` computes them.
        states: state slots of linear-attention layers, if any.

    Attributes:
        key_pages, value_pages: one num_pages×H×T×D array per layer with pages, for T tokens per
            page. Layers of different tables may share an array, but never a page. Written in place;
            do not keep references to the arrays.
        resident: pages with physical memory.

    Raises:
        ValueError: `num_pages` or the page size is below 1.
    """

    def __init__(
        self, layout: KvLayout, num_pages: int, dtype: mx.Dtype, states: StateStorage | None = None
    ):
        if num_pages < 1 or layout.page_size < 1:
            raise ValueError(
                "PagedStorage: num_pages and page_size must be at least 1, got "
                f"{num_pages} and {layout.page_size}."
            )
        self.layout = layout
        self.num_pages = num_pages
        self.key_pages, self.value_pages = self._reserve(dtype), self._reserve(dtype)
        self.states = states
        self.resident: set[int] = set()
        self._page_bytes = layout.page_elements * dtype.size

    def _reserve(self, dtype: mx.Dtype) -> list[mx.array]:
        """Reserves the layout's arrays; returns each layer's view of one of them."""
        layout, P = self.layout, self.num_pages
        arrays = [kernels.reserve_zeros((P, size), dtype) for size in layout.array_elements]
        views = [
            arrays[index].reshape(P, *layout.page_shape(layer))
            for layer, index in enumerate(layout.array_of)
        ]
        mx.eval(views)
        return views

    @property
    def arrays(self) -> list[mx.array]:
        """Arrays to evaluate to materialize all writes."""
        pages, states = [*self.key_pages, *self.value_pages], self.states
        return pages if states is None else [*pages, *states.arrays]

    @property
    def nbytes(self) -> int:
        """Bytes of physical memory of all pages and state slots."""
        pages = len(self.resident) * self._page_bytes
        return pages if self.states is None else pages + self.states.nbytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all pages and state slots, with or without physical memory."""
        states = [] if self.states is None else self.states.arrays
        return self.num_pages * self._page_bytes + sum(array.nbytes for array in states)

    @property
    def page_arrays(self) -> list[mx.array]:
        """Arrays of all keys, then of all values; element i of each array is page i."""
        return [pages[layer] for pages, layer in self._views]

    @property
    def _views(self) -> list[tuple[list[mx.array], int]]:
        """One layer's view of each key array, then of each value array."""
        layers = {array: layer for layer, array in enumerate(self.layout.array_of)}.values()
        return [(pages, layer) for pages in (self.key_pages, self.value_pages) for layer in layers]

    def write_pages(self, page_ids: Sequence[int], rows: mx.array) -> None:
        """Overwrites N pages with N×bytes uint8, in the order of `page_arrays`."""
        self.resident.update(page_ids)
        start = 0
        for pages, layer in self._views:
            end = start + math.prod(pages[layer].shape[1:]) * pages[layer].dtype.size
            pages[layer] = _with_pages(pages[layer], page_ids, rows[:, start:end])
            start = end
        mx.eval(self.page_arrays)

    def populate(self, num_pages: int, num_slots: int) -> None:
        """Allocates physical memory for the first pages and state slots."""
        for pages in self.page_arrays:
            kernels.extension().populate_rows(pages, num_pages)
        self.resident.update(range(num_pages))
        if self.states is not None:
            for states in self.states.arrays:
                kernels.extension().populate_rows(states, num_slots)
            self.states.resident.update(range(num_slots))

    def release(self, pages: Collection[int], slots: Collection[int]) -> None:
        """Returns the physical memory of unused pages and state slots; see `release_rows`."""
        release_rows(self.page_arrays, self.resident, pages)
        if self.states is not None:
            release_rows(self.states.arrays, self.states.resident, slots)

    def plan(self, batch: RaggedBatch) -> StepPlan:
        """Plans a step over a ragged batch with slots for each of the layout's tables."""
        layout = self.layout
        for table, slots in zip(layout.tables, batch.slots, strict=True):
            tokens = layout.page_size // table.num_pages  # per page
            self.resident.update(slot // tokens for slot in slots)
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
        tables = layout.table_of if len(layout.tables) > 1 else ()
        return StepPlan(batch.attention_metadata, arrays, commit, tables=tables)
