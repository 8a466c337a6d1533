"""The decoder of all families, on several ranks.

A rank's decoder is that of a smaller model (`models/parts.py`) with four changes: the outputs of
attention and of the MLP are summed over the ranks, the table is, and logits are gathered. So the
decoder itself knows nothing of ranks, and one rank alone pays nothing.

Source: Shoeybi et al., "Megatron-LM" (2019), arXiv 1909.08053.
"""

from typing import Any

import mlx.core as mx

from ..families.decoder import Decoder, PlainLayers
from ..parts import RankPart
from .block import SplitBlock
from .layers import SplitHead, SplitTable


class ParallelDecoder(Decoder):
    """This rank's part of a decoder; all ranks call it with the same arguments.

    Args:
        mlx_model: this rank's part of a checkpoint.
        part: which part that is.
        group: the ranks.
        page_size, attention_backend: see `Decoder`; errors too.
    """

    def __init__(
        self,
        mlx_model: Any,
        part: RankPart,
        group: mx.distributed.Group,
        page_size: int = 128,
        attention_backend: str = "paged",
    ):
        super().__init__(mlx_model, page_size, attention_backend)
        self.vocab_size = part.whole.vocab_size
        self._num_ranks = part.size
        self.embedding = SplitTable(self.embedding, part.tokens, group)
        self.layers = [SplitBlock(one, group, self.can_be_recorded) for one in self.layers]
        self.w_lm_head = SplitHead(self.w_lm_head, part.tokens_per_rank, self.vocab_size, group)
        # All layers together cannot be recorded, but each half of one: see `SplitBlock`.
        self._run_placed = PlainLayers(self._run_each_layer, self.num_hidden_layers)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that a token occupies, on all ranks together."""
        return super().kv_bytes_per_token * self._num_ranks
