"""Page storage with one block table for all layers; ragged batches.

In a `TinyKvPagedPool`, every layer of every request has separate page ids. In a `PagedStorage`, a
page id refers to the same page in every layer's arrays: one block table serves all layers, and a
page is allocated once for all of them. The engine allocates page ids; this module holds the memory
and builds a step's metadata.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ..attention import as_int32
from .full import GROWTH_TOKENS, INITIAL_TOKENS
from .page_pool import grow_pages
from .step_plan import AttentionMetadata, StepPlan

Integers = Sequence[int] | mx.array


class RaggedBatch:
    """One step's tokens: T tokens of B sequences, concatenated without padding.

    Args:
        positions: T, each token's position in its sequence.
        slot_mapping: T, each token's slot: page_id · page_size + position % page_size.
        cu_seqlens_q: B+1: sequence s has tokens cu_seqlens_q[s] to cu_seqlens_q[s + 1] − 1.
        context_lens: B, each sequence's length including this step's tokens.
        block_table: B×max_pages, each sequence's pages in order, padded with −1. As lists, rows may
            differ in length.

    Attributes:
        positions, slot_mapping, cu_seqlens_q, context_lens, block_table: as int32 arrays.
        max_slot: maximum of `slot_mapping`; −1 if empty.

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
    ):
        if not isinstance(block_table, mx.array):
            width = max([1, *map(len, block_table)])
            padded = [[*row, *[-1] * (width - len(row))] for row in block_table]
            block_table = mx.array(padded, dtype=mx.int32).reshape(-1, width)
        slots: Any = slot_mapping.tolist() if isinstance(slot_mapping, mx.array) else slot_mapping
        self.max_slot: int = max(slots, default=-1)
        self.positions = as_int32(positions)
        self.slot_mapping = as_int32(slot_mapping)
        self.cu_seqlens_q = as_int32(cu_seqlens_q)
        self.context_lens = as_int32(context_lens)
        self.block_table = block_table
        T, B = self.num_tokens, self.num_seqs
        if (self.slot_mapping.size, self.cu_seqlens_q.size, block_table.shape[0]) != (T, B + 1, B):
            raise ValueError(
                f"RaggedBatch: {T} tokens of {B} sequences require {T} slots, {B + 1} cu_seqlens_q "
                f"and {B} rows of the block table, got {self.slot_mapping.size}, "
                f"{self.cu_seqlens_q.size} and {block_table.shape[0]}."
            )

    @property
    def num_tokens(self) -> int:
        """Number of tokens T."""
        return self.positions.size

    @property
    def num_seqs(self) -> int:
        """Number of sequences B."""
        return self.context_lens.size


class PagedStorage:
    """Key and value pages of each layer, allocated on demand up to a limit.

    Writing to a page allocates it and all pages with lower ids. Memory grows in steps, as in
    `TinyKvFullCache`, and never shrinks, so a page allocator should prefer low ids.

    Args:
        num_layers: number of layers.
        num_pages: maximum pages per layer.
        num_kv_heads: H.
        page_size: tokens per page.
        head_dim: D.
        dtype: dtype of keys and values.

    Attributes:
        num_pages: maximum pages per layer.
        page_size: tokens per page.
        key_pages, value_pages: a P×H×page_size×D array per layer, with the P allocated pages.
            Written in place; do not keep references to the arrays.

    Raises:
        ValueError: `num_pages` or `page_size` is below 1.
    """

    def __init__(
        self,
        num_layers: int,
        num_pages: int,
        num_kv_heads: int,
        page_size: int,
        head_dim: int,
        dtype: mx.Dtype,
    ):
        if num_pages < 1 or page_size < 1:
            raise ValueError(
                "PagedStorage: num_pages and page_size must be at least 1, got "
                f"{num_pages} and {page_size}."
            )
        self.num_pages = num_pages
        self.page_size = page_size
        empty = mx.zeros((0, num_kv_heads, page_size, head_dim), dtype=dtype)
        self.key_pages = [empty] * num_layers
        self.value_pages = [empty] * num_layers

    @property
    def nbytes(self) -> int:
        """Allocated bytes of all layers' pages."""
        return sum(pages.nbytes for pages in (*self.key_pages, *self.value_pages))

    def ensure_capacity(self, num_pages: int) -> None:
        """Allocates memory for the first `num_pages` pages, up to the limit."""
        existing, *shape = self.value_pages[-1].shape
        if existing >= min(num_pages, self.num_pages):
            return
        tokens = GROWTH_TOKENS if existing else INITIAL_TOKENS
        growth = max(num_pages - existing, existing // 2, -(-tokens // self.page_size))
        capacity = min(existing + growth, self.num_pages)
        for pages in (self.key_pages, self.value_pages):
            for layer in range(len(pages)):
                room = (capacity - len(pages[layer]), *shape)
                pages[layer] = grow_pages(pages[layer], room, pages[layer].dtype)
                mx.eval(pages[layer])  # frees the old array before the next one is copied

    def plan(self, batch: RaggedBatch) -> StepPlan:
        """Plans a step over a ragged batch; slots are the same in every layer."""
        self.ensure_capacity(batch.max_slot // self.page_size + 1)
        attention_metadata = AttentionMetadata(
            batch.slot_mapping, batch.context_lens, batch.block_table, batch.cu_seqlens_q
        )
        pairs = zip(self.key_pages, self.value_pages, strict=True)

        def commit(buffers: list[mx.array]) -> None:
            self.key_pages[:], self.value_pages[:] = buffers[::2], buffers[1::2]

        return StepPlan(attention_metadata, [pages for pair in pairs for pages in pair], commit)
