"""Week 3's Qwen3: paged KV cache and ragged batches.

Weights, norms, RoPE and MLP are unchanged from Week 2. Keys and values are stored in pages
(`page_pool`), which attention locates through a block table. `ragged_logits` runs the layers over a
ragged batch of tokens from many requests, as the engine does.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from . import kernels
from .attention import paged_attention, paged_attention_varlen
from .kv_cache import (
    PagedKvMetadata,
    TinyKvCache,
    TinyKvPagedCache,
    TinyKvPagedPool,
)
from .kv_cache.planning import plan_paged
from .kv_storage import KvLayout, LayerKv, PagedStorage, RaggedBatch
from .qwen3_week2 import Qwen3ModelWeek2


def attend_paged(
    query: mx.array, key: mx.array, value: mx.array, cache: Any, scale: float
) -> mx.array:
    """Attention backend for paged caches; the engine's is in `models/families/decoder.py`.

    Raises:
        ValueError: the cache is not paged.
    """
    if not hasattr(cache, "update_and_fetch_paged"):
        raise ValueError(
            f"Qwen3ModelWeek3: the cache must be paged, got {type(cache).__name__}; use the "
            "model's create_kv_cache."
        )
    metadata = cache.update_and_fetch_paged(key, value, mask="causal")
    if metadata.cu_seqlens_q is not None:
        return attend_ragged(query, metadata, scale)
    # [task 3.2.3]
    return paged_attention(
        query,
        metadata.key_pages,
        metadata.value_pages,
        metadata.block_table,
        metadata.context_lens,
        metadata.page_size,
        scale,
        "causal",
    )
    # [/task 3.2.3]


def attend_ragged(query: mx.array, metadata: PagedKvMetadata, scale: float) -> mx.array:
    """Attends over a ragged batch already written to pages: 1×H_q×T×D."""
    assert metadata.cu_seqlens_q is not None
    attended = paged_attention_varlen(
        query.squeeze(0).swapaxes(0, 1),  # T×H_q×D
        metadata.key_pages,
        metadata.value_pages,
        metadata.cu_seqlens_q,
        metadata.context_lens,
        metadata.block_table,
        metadata.page_size,
        scale,
    )
    return attended.swapaxes(0, 1)[None]  # 1×H_q×T×D


class Qwen3ModelWeek3(Qwen3ModelWeek2):
    """Qwen3 with a paged KV cache.

    Args:
        mlx_model: a Qwen3 checkpoint from `mlx_lm.load` or `load_weights`, or any objects with the
            same attributes. Its arrays are shared.
        page_size: tokens per page.

    Attributes:
        page_pool: unbounded page pool, shared by all layers and requests.

    Raises:
        ValueError: `page_size` is below 1, or the kernels do not support the quantization.
    """

    def __init__(self, mlx_model: Any, page_size: int = 128):
        self._build(mlx_model, attend_paged, plan_paged)
        self.page_size = page_size
        self.page_pool = TinyKvPagedPool(page_size)
        self.num_kv_heads = mlx_model.args.num_key_value_heads
        self.head_dim = mlx_model.args.head_dim
        self.dtype: mx.Dtype = self.norm.dtype  # dtype of activations, keys and values

    def create_kv_cache(self) -> list[TinyKvCache]:
        """Creates one request's empty caches, one per layer, all in `page_pool`."""
        # [task 3.1.3 cache]
        return [TinyKvPagedCache(self.page_pool) for _ in range(self.num_hidden_layers)]
        # [/task 3.1.3 cache]

    def create_paged_storage(self, num_pages: int) -> PagedStorage:
        """Creates page storage for `ragged_logits`.

        The storage takes at most num_pages · page_size · `kv_bytes_per_token` bytes, allocated when
        pages are first written.
        """
        layers = [LayerKv(0, self.num_kv_heads, self.head_dim)] * self.num_hidden_layers
        return PagedStorage(KvLayout.one_table(layers, self.page_size), num_pages, self.dtype)

    def ragged_logits(
        self,
        ids: Sequence[int] | mx.array,
        batch: RaggedBatch,
        rows: Sequence[int] | mx.array,
        storage: PagedStorage,
    ) -> mx.array:
        """Runs a step over new tokens of many sequences: logits len(rows)×V.

        Batch-invariant: a token's logits have the same bits as in a batch of one. Precondition:
        positions are below `max_seq_len` (unchecked).

        Args:
            ids: T token ids in the order of `batch`.
            batch: the tokens' sequences, positions and page slots.
            rows: indices of the tokens whose logits to compute: each sequence's last token, except
                for sequences whose prompt is not complete after this step.
            storage: from `create_paged_storage`. Evaluating `storage.arrays` writes the batch's
                keys and values; unless `rows` is empty, evaluating the result does so, too.

        Raises:
            ValueError: the number of ids is not T.
        """
        ids, rows = kernels.as_int32(ids), kernels.as_int32(rows)
        if ids.shape != (batch.num_tokens,):
            raise ValueError(
                f"Qwen3ModelWeek3: ids must have shape ({batch.num_tokens},), one id per token of "
                f"the batch, got {ids.shape}."
            )
        cos_sin = self.rope.cos_sin_at(batch.positions[None])  # 1×T×D/2
        x = self.embedding(ids[None])  # 1×T×E
        x, update = self._run_planned(x, cos_sin, storage.plan(batch))
        return self._logits(x[0, rows], update[0, rows])

    @property
    def kv_bytes_per_token(self) -> int:
        """KV cache bytes per token, over all layers."""
        numbers = 2 * self.num_hidden_layers * self.num_kv_heads * self.head_dim
        return numbers * self.dtype.size
