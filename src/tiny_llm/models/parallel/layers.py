"""Collectives and vocabulary-parallel layers.

`all_reduce` gathers all ranks' arrays and adds them in rank order. MLX's `all_sum` over the ring
would add in an order that depends on the offset in the message, so a token's result would depend on
its index in the batch. For N ranks, the ring would also take 2(N − 1) sequential messages instead
of N − 1, and decoding exchanges small arrays, for which latency dominates. With three or more
ranks, however, gathering sends more bytes, which slows down long prompts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from . import mpi

Group = mx.distributed.Group

# Maximum bytes that each rank sends at once. In MLX's ring, all ranks send before any receives, so
# larger messages exceed the socket buffers and stall: 1 MB takes 4 to 12 ms, but 1 ms in chunks.
MAX_MESSAGE_BYTES = 2**17


def all_reduce(x: mx.array, group: Group) -> mx.array:
    """Sums an array over all ranks; the result is bit-identical on every rank.

    The arrays are added in float32 in rank order, and the sum is rounded once to the dtype of `x`.
    """
    # [solution only]
    if mpi.is_initialized and group.size() == 2:  # the order of two addends is irrelevant
        return mx.distributed.all_sum(x, group=group)
    # [/solution only]
    # [task 6.2.3 sum]
    parts = all_gather(x, group)  # N×…
    if group.size() == 2:
        return parts[0] + parts[1]  # rounded once
    total = parts[0].astype(mx.float32)
    for rank in range(1, group.size()):
        total = total + parts[rank]
    return total.astype(x.dtype)
    # [/task 6.2.3 sum]


def all_gather(x: mx.array, group: Group) -> mx.array:
    """Stacks equally shaped arrays of all N ranks along a new first axis.

    Each chunk depends on the previous one, so that all ranks exchange chunks in the same order.
    """
    flat, length = x.reshape(1, -1), MAX_MESSAGE_BYTES // x.dtype.size
    chunks: list[mx.array] = []
    for start in range(0, x.size, length):
        chunk = flat[:, start : start + length] if x.size > length else flat
        if chunks:
            [chunk] = mx.depends([chunk], chunks[-1:])
        chunks.append(mx.distributed.all_gather(chunk, group=group))
    return mx.concatenate(chunks, axis=-1).reshape(group.size(), *x.shape)


@dataclass(eq=False)
class VocabParallelEmbedding:
    """Embedding split by vocabulary; a rank adds zeros for other ranks' tokens.

    Attributes:
        table: this rank's embedding: token ids relative to `tokens.start` -> features.
        tokens: this rank's range of token ids.
        group: of all ranks.
    """

    table: Callable[[mx.array], mx.array]
    tokens: range
    group: Group

    def __call__(self, ids: mx.array) -> mx.array:
        """Embeds token ids of any shape N..: N.. -> N..×E, for hidden size E."""
        # [task 6.2.4 table]
        own = ids.astype(mx.int32) - self.tokens.start
        is_own = (own >= 0) & (own < len(self.tokens))
        rows = self.table(mx.where(is_own, own, 0))
        zero = mx.zeros((), rows.dtype)
        return all_reduce(mx.where(is_own[..., None], rows, zero), self.group)
        # [/task 6.2.4 table]


@dataclass(eq=False)
class ParallelLMHead:
    """LM head split by vocabulary; all ranks get all logits.

    Attributes:
        head: this rank's LM head: R hidden states -> R×v logits, for v tokens of the vocabulary.
        vocab_per_rank: v of all ranks but the last, whose v may be smaller.
        vocab_size: size of the full vocabulary.
        group: of all ranks.
    """

    head: Callable[[mx.array], mx.array]
    vocab_per_rank: int
    vocab_size: int
    group: Group

    def __call__(self, x: mx.array) -> Any:
        """Logits of R hidden states, R×vocab_size; R = 0 needs no communication."""
        if x.shape[0] == 0:
            return mx.zeros((0, self.vocab_size), x.dtype)
        # [task 6.2.4 head]
        own = self.head(x)  # R×v
        own = mx.pad(own, [(0, 0), (0, self.vocab_per_rank - own.shape[1])])
        parts = all_gather(own, self.group)  # N×R×width
        return parts.swapaxes(0, 1).reshape(x.shape[0], -1)[:, : self.vocab_size]
        # [/task 6.2.4 head]
