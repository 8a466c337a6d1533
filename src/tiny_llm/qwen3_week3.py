"""Qwen3 over pages: what Week 3 changes in the model.

Weights, norms, RoPE and MLP are Week 2's. Keys and values are now in pages (`page_pool`), and
attention finds them through a block table. A second way to run the layers is new, too: over a
ragged batch of tokens of many requests, as an engine does.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from .attention import as_int32, paged_attention, paged_attention_varlen
from .kv_cache import (
    PagedKvMetadata,
    PagedStorage,
    RaggedBatch,
    TinyKvCache,
    TinyKvPagedCache,
    TinyKvPagedPool,
)
from .kv_cache.planning import plan_paged
from .qwen3_week2 import Qwen3ModelWeek2


def attend_paged(
    query: mx.array, key: mx.array, value: mx.array, cache: Any, scale: float
) -> mx.array:
    """Week 2's `AttentionFn`, over pages.

    Raises:
        ValueError: a cache that is not paged. It is not copied into pages silently.
    """
    if not hasattr(cache, "update_and_fetch_paged"):
        raise ValueError(
            f"Qwen3ModelWeek3: a {type(cache).__name__} has no pages; use the model's own "
            "create_kv_cache."
        )
    found = cache.update_and_fetch_paged(key, value, mask="causal")
    if found.cu_seqlens_q is not None:
        return _attend_ragged(query, found, scale)
    # [task 3.2.3]
    return paged_attention(
        query,
        found.key_pages,
        found.value_pages,
        found.block_table,
        found.context_lens,
        found.page_size,
        scale,
        "causal",
    )
    # [/task 3.2.3]


def _attend_ragged(query: mx.array, found: PagedKvMetadata, scale: float) -> mx.array:
    """`attend_paged` for the tokens of a ragged batch, 1×H_q×T×D, once theirs are in the pages."""
    assert found.cu_seqlens_q is not None
    # [task 3.3.1 attend]
    attended = paged_attention_varlen(
        query.squeeze(0).swapaxes(0, 1),  # T×H_q×D
        found.key_pages,
        found.value_pages,
        found.cu_seqlens_q,
        found.context_lens,
        found.block_table,
        found.page_size,
        scale,
    )
    return attended.swapaxes(0, 1)[None]  # 1×H_q×T×D
    # [/task 3.3.1 attend]


class Qwen3ModelWeek3(Qwen3ModelWeek2):
    """Qwen3 with its keys and values in pages.

    Args:
        mlx_model: a Qwen3 checkpoint from `mlx_lm.load` or `load_weights`. Its arrays are shared.
        page_size: tokens a page holds.

    Attributes:
        page_pool: the pages of all layers and all requests, as many as they need.
        page_size: as given.

    Raises:
        ValueError: a page size below 1, or a kind of quantization that the kernels do not read.
    """

    def __init__(self, mlx_model: Any, page_size: int = 128):
        self._build(mlx_model, attend_paged, plan_paged)
        self.page_size = page_size
        self.page_pool = TinyKvPagedPool(page_size)
        self.num_kv_heads = mlx_model.args.num_key_value_heads
        self.head_dim = mlx_model.args.head_dim
        self.dtype: mx.Dtype = self.norm.dtype  # of activations, and so of keys and values

    def create_kv_cache(self) -> list[TinyKvCache]:
        """An empty cache for one request: one for each layer, all on `page_pool`."""
        # [task 3.1.3 cache]
        return [TinyKvPagedCache(self.page_pool) for _ in range(self.num_hidden_layers)]
        # [/task 3.1.3 cache]

    def create_paged_storage(self, num_pages: int) -> PagedStorage:
        """Pages of `page_size` tokens for all layers under one block table, for `ragged_logits`.

        They take at most num_pages · page_size · `kv_bytes_per_token` bytes: memory is taken when
        pages are first written to.
        """
        return PagedStorage(
            self.num_hidden_layers,
            num_pages,
            self.num_kv_heads,
            self.page_size,
            self.head_dim,
            self.dtype,
        )

    def ragged_logits(
        self,
        ids: Sequence[int] | mx.array,
        batch: RaggedBatch,
        rows: Sequence[int] | mx.array,
        storage: PagedStorage,
    ) -> mx.array:
        """Runs a step: new tokens of many sequences, each at its own position, weights read once.

        A token's logits have the same bits as alone, with a cache of its own. Positions are not
        checked: the caller keeps them below `max_seq_len`.

        Args:
            ids: T, the tokens in the order of `batch`.
            batch: which sequence and position each has, and where its key and value go.
            rows: the tokens, of the T, whose logits are wanted: none of a chunk that does not end
                its prompt, the last one of a chunk that does. Other logits are not computed.
            storage: from `create_paged_storage`. The batch's keys and values are written into it
                when the result is evaluated.

        Returns:
            Logits, len(rows)×V.

        Raises:
            ValueError: not T ids.
        """
        ids, rows = as_int32(ids), as_int32(rows)
        if ids.shape != (batch.num_tokens,):
            raise ValueError(
                f"Qwen3ModelWeek3: ids of shape {ids.shape} were given for a batch of "
                f"{batch.num_tokens} tokens."
            )
        cos_sin = self.rope.cos_sin_at(batch.positions[None])  # 1×T×D/2
        x = self.embedding(ids[None])  # 1×T×E
        x, update = self._run_planned(x, cos_sin, storage.plan(batch))
        return self._logits(x[0, rows], update[0, rows])

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that a token occupies, in all layers together."""
        numbers = 2 * self.num_hidden_layers * self.num_kv_heads * self.head_dim
        return numbers * self.dtype.size
