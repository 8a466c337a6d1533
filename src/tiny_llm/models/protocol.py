"""Protocol of the engine's models."""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from ..kv_cache.paged_storage import PagedStorage, RaggedBatch


class ServingModel(Protocol):
    """A model over paged KV storage, for ragged batches.

    `families.decoder.Decoder` implements it for every family, and `Qwen3ModelWeek3` for the
    course's engine.

    Attributes:
        vocab_size: number of logits per token.
        page_size: tokens per page.
        max_seq_len: context length in tokens.
    """

    vocab_size: int
    page_size: int
    max_seq_len: int

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values per token, in all layers."""
        ...

    def create_paged_storage(self, num_pages: int) -> PagedStorage:
        """Creates KV pages for all layers under one block table.

        Memory is allocated when pages are first written: at most
        num_pages · page_size · `kv_bytes_per_token` bytes.
        """
        ...

    def ragged_logits(
        self,
        ids: Sequence[int] | mx.array,
        batch: RaggedBatch,
        rows: Sequence[int] | mx.array,
        storage: PagedStorage,
    ) -> mx.array:
        """Computes a step: new tokens of many sequences, each at its own position.

        A token's logits are bit-identical in any batch. Precondition: all positions are within the
        context.

        Args:
            ids: T token ids in the order of `batch`.
            batch: sequence, position and KV slot of each token.
            rows: indices into T of the tokens whose logits are computed.
            storage: from `create_paged_storage`; receives the batch's keys and values when the
                result is evaluated.

        Returns:
            Logits, len(rows)×V.

        Raises:
            ValueError: the number of ids is not T.
        """
        ...
