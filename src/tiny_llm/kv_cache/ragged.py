"""Pages for all layers under one block table, and the ragged batches that are run over them.

A `TinyKvPagedPool` gives every layer of every request pages of its own. An engine plans with fewer
numbers: page p of a request is page p in each layer's arrays, so one block table serves all layers,
and a page is allocated once for all of them. Which page belongs to whom is the engine's business;
this file has the memory, and the arrays that tell a step where to write and what to read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from .. import kernels
from ..attention import Mask
from .paged import PagedKvMetadata, check_paged_mask

Integers = Sequence[int] | mx.array


@dataclass(frozen=True, eq=False)
class RaggedBatch:
    """One step's tokens, T of B sequences, one sequence after the other without padding.

    Lists become int32 arrays; rows of the block table may then have different lengths.

    Attributes:
        positions: T, the position of each token in its sequence.
        slot_mapping: T, where its key and value go: page_id · page_size + position % page_size.
        cu_seqlens_q: B+1: sequence s has tokens cu_seqlens_q[s] to cu_seqlens_q[s + 1] − 1.
        context_lens: B, how many tokens each sequence has in the pages with this step's.
        block_table: B×max_pages, the pages of each sequence in order, then −1.

    Raises:
        ValueError: numbers of tokens or of sequences that contradict each other.
    """

    positions: mx.array
    slot_mapping: mx.array
    cu_seqlens_q: mx.array
    context_lens: mx.array
    block_table: mx.array

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
        fields = {
            "positions": _int32(positions),
            "slot_mapping": _int32(slot_mapping),
            "cu_seqlens_q": _int32(cu_seqlens_q),
            "context_lens": _int32(context_lens),
            "block_table": block_table,
        }
        for name, array in fields.items():
            object.__setattr__(self, name, array)
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
    """Key and value pages for each layer, all allocated at once and never more.

    Args:
        num_layers: how many layers there are.
        num_pages: P, of each layer.
        num_kv_heads: H.
        page_size: tokens a page holds.
        head_dim: D.
        dtype: of keys and values.

    Attributes:
        num_pages, page_size: as given.
        key_pages, value_pages: a P×H×page_size×D array for each layer. They are written in place;
            do not keep references to the arrays.

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
        shape = (num_pages, num_kv_heads, page_size, head_dim)
        self.key_pages = [mx.zeros(shape, dtype=dtype) for _ in range(num_layers)]
        self.value_pages = [mx.zeros(shape, dtype=dtype) for _ in range(num_layers)]
        mx.eval(self.key_pages, self.value_pages)

    @property
    def nbytes(self) -> int:
        """Bytes of all pages of all layers."""
        return sum(pages.nbytes for pages in (*self.key_pages, *self.value_pages))

    def caches(self, batch: RaggedBatch) -> list["RaggedKvCache"]:
        """What each layer of the model is given as its cache for a step."""
        return [RaggedKvCache(self, layer, batch) for layer in range(len(self.key_pages))]


class RaggedKvCache:
    """One layer's pages, for one step: a batch of tokens is written, and all may be attended to.

    Args:
        storage: the pages.
        layer: whose.
        batch: what goes where.
    """

    def __init__(self, storage: PagedStorage, layer: int, batch: RaggedBatch):
        self.storage = storage
        self.batch = batch
        self._layer = layer

    def update_and_fetch_paged(
        self,
        key: mx.array,
        value: mx.array,
        mask_length: int | None = None,
        mask: Mask = None,
    ) -> PagedKvMetadata:
        """Writes the batch's keys and values and says where all of its sequences' are.

        Args:
            key: 1×H×T×D.
            value: 1×H×T×D.
            mask_length: not used.
            mask: must be "causal".

        Raises:
            ValueError: another mask, or keys and values that the pages cannot hold.
        """
        check_paged_mask(mask)
        if mask is None:
            raise ValueError("RaggedKvCache: a ragged batch is causal; give mask='causal'.")
        # [task 3.3.1 ragged]
        keys, values = self.storage.key_pages, self.storage.value_pages
        slots = self.batch.slot_mapping[None]  # 1×T
        keys[self._layer] = kernels.paged_cache_write(keys[self._layer], key, slots)
        values[self._layer] = kernels.paged_cache_write(values[self._layer], value, slots)
        return PagedKvMetadata(
            keys[self._layer],
            values[self._layer],
            self.batch.block_table,
            self.batch.context_lens,
            self.storage.page_size,
            mask,
            self.batch.cu_seqlens_q,
        )
        # [/task 3.3.1 ragged]


def _int32(numbers: Integers) -> mx.array:
    return numbers if isinstance(numbers, mx.array) else mx.array(list(numbers), dtype=mx.int32)
