"""The decoder of all families, split among ranks.

A rank runs the decoder of a smaller model (`models/checkpoint/sharding.py`) with four changes: the
outputs of attention, MLP and embedding are all-reduced, and logits are gathered. `Decoder` itself
has no notion of ranks, and a single process pays nothing.

Source: Shoeybi et al., "Megatron-LM" (2019), arXiv 1909.08053.
"""

from typing import Any

import mlx.core as mx

from ..checkpoint.sharding import RankShard
from ..families.decoder import Decoder, EagerLayers
from .block import TensorParallelBlock
from .layers import ParallelLMHead, VocabParallelEmbedding


class TensorParallelDecoder(Decoder):
    """This rank's shard of a decoder; all ranks call it with the same arguments.

    Args:
        mlx_model: this rank's shard of a checkpoint.
        part: description of the shard.
        group: the ranks.
        page_size, attention_backend: see `Decoder`, also for errors.
    """

    def __init__(
        self,
        mlx_model: Any,
        part: RankShard,
        group: mx.distributed.Group,
        page_size: int = 128,
        attention_backend: str = "paged",
    ):
        super().__init__(mlx_model, page_size, attention_backend)
        self.vocab_size = part.full_config.vocab_size
        self._num_ranks = part.size
        self.embedding = VocabParallelEmbedding(self.embedding, part.vocab_range, group)
        self.layers = [
            TensorParallelBlock(one, group, self.supports_graph_capture) for one in self.layers
        ]
        self.w_lm_head = ParallelLMHead(self.w_lm_head, part.vocab_per_rank, self.vocab_size, group)
        # The whole step cannot be captured, only each half of a block: see `TensorParallelBlock`.
        self._run_planned = EagerLayers(self._run_layers, self.config.num_hidden_layers)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values per token, on all ranks together."""
        return super().kv_bytes_per_token * self._num_ranks
