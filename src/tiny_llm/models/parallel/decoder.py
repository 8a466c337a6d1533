"""Tensor-parallel decoder for all families.

Each rank runs the decoder of a smaller model (`models/checkpoint/sharding.py`) with four changes:
attention, MLP and embedding outputs are all-reduced, and logits are all-gathered. `Decoder` itself
is independent of ranks, so a single process has no overhead.

Source: Shoeybi et al., "Megatron-LM" (2019), arXiv 1909.08053.
"""

from typing import Any

import mlx.core as mx

from ..checkpoint.sharding import RankShard
from ..families.decoder import Decoder, DecoderBlock, EagerLayers
from ..output_heads import MtpDecoder
from .block import TensorParallelBlock
from .group import Replica
from .layers import ParallelLMHead, VocabParallelEmbedding


class TensorParallelDecoder(Decoder, Replica):
    """This rank's shard of a decoder; all ranks call it with the same arguments."""

    def __init__(
        self, mlx_model: Any, rank_shard: RankShard, group: mx.distributed.Group, **options: Any
    ):
        super().__init__(mlx_model, **options)
        self.vocab_size = rank_shard.full_config.vocab_size
        self.rank_shard = rank_shard
        self.embedding = VocabParallelEmbedding(self.embedding, rank_shard.vocab_range, group)
        self.layers = [
            TensorParallelBlock(block, group, self.supports_graph_capture, self.adapters)
            for block in self.layers
        ]
        self.w_lm_head = ParallelLMHead(
            self.w_lm_head, rank_shard.vocab_per_rank, self.vocab_size, group
        )
        # An all-reduce cannot be captured, so `TensorParallelBlock` captures the halves of a block.
        self._run_planned = EagerLayers(self._run_layers, max(self._cache_indices) + 1)

    @property
    def blocks(self) -> list[DecoderBlock]:
        return [layer.block for layer in self.layers]

    @property
    def kv_element_bytes(self) -> int:
        return super().kv_element_bytes * self.rank_shard.size

    @property
    def state_bytes(self) -> int:
        return super().state_bytes * self.rank_shard.size


class TensorParallelMtpDecoder(MtpDecoder, TensorParallelDecoder):
    """This rank's shard of an MTP layer; see `TensorParallelDecoder`."""
