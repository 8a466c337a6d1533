"""Pages for all layers under one block table, and the ragged batches that are run over them.

A `TinyKvPagedPool` gives every layer of every request pages of its own. An engine plans with fewer
numbers: page p of a request is page p in each layer's arrays, so one block table serves all layers,
and a page is allocated once for all of them. Which page belongs to whom is the engine's business;
this file has the memory, and the arrays that tell a step where to write and what to read.
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
    """One step's tokens, T of B sequences, one sequence after the other without padding.

    Args:
        positions: T, the position of each token in its sequence.
        slot_mapping: T, where its key and value go: page_id · page_size + position % page_size.
        cu_seqlens_q: B+1: sequence s has tokens cu_seqlens_q[s] to cu_seqlens_q[s + 1] − 1.
        context_lens: B, how many tokens each sequence has in the pages with this step's.
        block_table: B×max_pages, the pages of each sequence in order, then −1. As lists, rows may
            have different lengths.

    Attributes:
        positions, slot_mapping, cu_seqlens_q, context_lens, block_table: as int32 arrays.
        max_slot: the largest of `slot_mapping`; −1 if there is none.

    Raises:
        ValueError: numbers of tokens or of sequences that contradict each other.
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
                f"RaggedBatch: {T} positions and {self.slot_mapping.size} slots, {B} context_lens, "
                f"{self.cu_seqlens_q.size} cu_seqlens_q and {block_table.shape[0]} rows of the "
                "block table; there must be a slot for each position, and of the latter one row "
                "more and as many as sequences."
            )

    @property
    def num_tokens(self) -> int:
        """T."""
        return self.positions.size

    @property
    def num_seqs(self) -> int:
        """B."""
        return self.context_lens.size


class PagedStorage:
    """Key and value pages for each layer, up to a declared number of them.

    A page has memory from the first step on that writes to it or to one after it. Memory is taken
    in steps, as `TinyKvFullCache` takes it, and not given back. Whoever hands out pages therefore
    saves memory by handing out low numbers first.

    Args:
        num_layers: how many layers there are.
        num_pages: how many pages each layer may have.
        num_kv_heads: H.
        page_size: tokens a page holds.
        head_dim: D.
        dtype: of keys and values.

    Attributes:
        num_pages, page_size: as given.
        key_pages, value_pages: a P×H×page_size×D array for each layer, of the P pages that have
            memory. They are written in place; do not keep references to the arrays.

    Raises:
        ValueError: a number below 1.
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
                f"PagedStorage: {num_pages} pages of {page_size} tokens; both must be at least 1."
            )
        self.num_pages = num_pages
        self.page_size = page_size
        empty = mx.zeros((0, num_kv_heads, page_size, head_dim), dtype=dtype)
        self.key_pages = [empty] * num_layers
        self.value_pages = [empty] * num_layers

    @property
    def nbytes(self) -> int:
        """Bytes that the pages of all layers take so far."""
        return sum(pages.nbytes for pages in (*self.key_pages, *self.value_pages))

    def ensure_capacity(self, num_pages: int) -> None:
        """Gives the first `num_pages` pages memory, as far as they were declared."""
        existing, *shape = self.value_pages[-1].shape
        if existing >= min(num_pages, self.num_pages):
            return
        tokens = GROWTH_TOKENS if existing else INITIAL_TOKENS
        growth = max(num_pages - existing, existing // 2, -(-tokens // self.page_size))
        enough = min(existing + growth, self.num_pages)
        for pages in (self.key_pages, self.value_pages):
            for layer in range(len(pages)):
                room = (enough - len(pages[layer]), *shape)
                pages[layer] = grow_pages(pages[layer], room, pages[layer].dtype)
                mx.eval(pages[layer])  # the smaller copy is let go before the next one is made

    def plan(self, batch: RaggedBatch) -> StepPlan:
        """A step's plan: the batch's tokens, each at its own place, the same in every layer."""
        self.ensure_capacity(batch.max_slot // self.page_size + 1)
        attention_metadata = AttentionMetadata(
            batch.slot_mapping, batch.context_lens, batch.block_table, batch.cu_seqlens_q
        )
        pairs = zip(self.key_pages, self.value_pages, strict=True)

        def commit(buffers: list[mx.array]) -> None:
            self.key_pages[:], self.value_pages[:] = buffers[::2], buffers[1::2]

        return StepPlan(attention_metadata, [pages for pair in pairs for pages in pair], commit)
