"""Embedding: token ids to features and, if tied, features to logits."""

import mlx.core as mx

from .basics import linear


class Embedding:
    """Embedding table V×E: E features for each of V tokens.

    Raises:
        ValueError: `weight` does not have shape V×E.
    """

    def __init__(self, vocab_size: int, embedding_dim: int, weight: mx.array):
        if weight.shape != (vocab_size, embedding_dim):
            raise ValueError(
                f"Embedding: weight must have shape ({vocab_size}, {embedding_dim}), got "
                f"{weight.shape}."
            )
        self.vocab_size = vocab_size
        self.embedding_dim = embedding_dim
        self.weight = weight

    def __call__(self, ids: mx.array) -> mx.array:
        """Looks up token embeddings: ids of any shape N.. -> N..×E."""
        # [task 1.5.2 lookup]
        return self.weight[ids]
        # [/task 1.5.2 lookup]

    def as_linear(self, x: mx.array) -> mx.array:
        """Computes logits as dot products with the table's rows: N..×E -> N..×V."""
        # [task 1.5.2 as-linear]
        return linear(x, self.weight)
        # [/task 1.5.2 as-linear]
