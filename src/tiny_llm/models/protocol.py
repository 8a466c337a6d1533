"""Protocol implemented by the engine's models."""

from collections.abc import Sequence
from typing import Protocol

import mlx.core as mx

from ..kv_cache.paged_storage import PagedStorage, RaggedBatch


class ServingModel(Protocol):
    """Runs ragged batches over paged KV storage; `families.decoder.Decoder` implements it."""

    vocab_size: int  # number of logits per token
    page_size: int  # tokens per page
    max_seq_len: int  # context length in tokens
    hidden_size: int  # features per token

    @property
    def kv_bytes_per_token(self) -> int: ...

    @property
    def state_bytes(self) -> int:
        """Bytes per recurrent-state slot, over all layers; 0 without recurrent state."""

    @property
    def max_window(self) -> int:
        """Sliding-window size in tokens if all layers have one, else 0."""

    def create_paged_storage(self, num_pages: int, num_state_slots: int = 0) -> PagedStorage:
        """Creates KV pages and state slots, whose ids are the same in all layers.

        Memory is allocated when pages and slots are first written, up to
        num_pages · page_size · `kv_bytes_per_token` + num_state_slots · `state_bytes` bytes.
        """

    def ragged_logits(
        self,
        ids: Sequence[int] | mx.array,
        batch: RaggedBatch,
        rows: Sequence[int] | mx.array,
        storage: PagedStorage,
    ) -> mx.array:
        """Computes the logits of one step, len(rows)×vocab_size.

        On a CPU, a token's logits are bit-identical in any batch. Precondition: all positions are
        within the context length.

        Args:
            ids: T token ids in the order of `batch`.
            batch: sequence, position and KV slot of each token.
            rows: indices of the tokens whose logits are computed, from 0 to T − 1.
            storage: from `create_paged_storage`. Evaluating `storage.arrays` writes the batch's
                keys and values; unless `rows` is empty, evaluating the result does so, too.

        Raises:
            ValueError: the number of ids is not T.
        """
