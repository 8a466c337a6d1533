"""Layers whose matrices are split among ranks, around those that a rank has.

Each needs one exchange between the ranks, in which every rank gets what all others have, and adds
it up in the order of their numbers. MLX's own sum is not used, for two reasons. Its ring adds up in
an order that depends on the place in the message, so a token would have other bits in a batch than
alone. And it sends 2(N − 1) messages one after the other, where this sends N − 1: the arrays of
decoding are small, so a message's latency is what they cost. For many ranks and long prompts this
sends more bytes.

Large arrays are exchanged in pieces. MLX's ring lets all ranks send before any has received, so a
message that the sockets' buffers cannot hold stalls: on loopback, 1 MB takes 4 to 12 ms in one
message, and 1 ms in pieces.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx

from . import mpi

Group = mx.distributed.Group

MAX_MESSAGE_BYTES = 2**17  # of a rank, in one message


def all_reduce(x: mx.array, group: Group) -> mx.array:
    """The sum of all ranks' arrays of this shape, with the same bits on each rank.

    The parts are added in float32 in the order of the ranks' numbers; the sum is rounded to the
    dtype of `x` once.
    """
    # [solution only]
    if mpi.can_all_reduce(group):
        return _with_timer(x, partial(mx.distributed.all_sum, group=group))
    # [/solution only]
    # [task 5.2.3 sum]
    parts = all_gather(x, group)  # N×…
    if group.size() == 2:
        return parts[0] + parts[1]  # which is rounded once
    total = parts[0].astype(mx.float32)
    for rank in range(1, group.size()):
        total = total + parts[rank]
    return total.astype(x.dtype)
    # [/task 5.2.3 sum]


def all_gather(x: mx.array, group: Group) -> mx.array:
    """All ranks' arrays of one shape, one above the other: N×…, where N is the number of ranks."""
    parts = _with_timer(x.reshape(-1), partial(_all_gather_chunked, group=group))
    return parts.reshape(group.size(), *x.shape)


def _with_timer(x: mx.array, exchange: Callable[[mx.array], mx.array]) -> mx.array:
    """What `exchange` returns; a profile's clock runs meanwhile."""
    return exchange(x) if comm_timer is None else comm_timer.time(x, exchange)


def _all_gather_chunked(flat: mx.array, group: Group) -> mx.array:
    """n -> N×n, in pieces.

    Each piece waits for the one before it. All ranks must exchange them in the same order.
    """
    length = MAX_MESSAGE_BYTES // flat.dtype.size
    if flat.size <= length:
        return mx.distributed.all_gather(flat[None], group=group)
    pieces: list[mx.array] = []
    for start in range(0, flat.size, length):
        piece = flat[start : start + length]
        if pieces:
            [piece] = mx.depends([piece], [pieces[-1]])
        pieces.append(mx.distributed.all_gather(piece[None], group=group))
    return mx.concatenate(pieces, axis=-1)


class CommTimer:
    """What exchanges take, for a profile: each is waited for by itself, which costs time, too.

    Attributes:
        count, n_bytes, seconds: of exchanges so far: how many, what this rank had to say, and how
            long it waited, for slower ranks as well.
    """

    def __init__(self) -> None:
        self.count, self.n_bytes, self.seconds = 0, 0, 0.0

    def time(self, x: mx.array, exchange: Callable[[mx.array], mx.array]) -> mx.array:
        """What `exchange` returns, which is computed then."""
        mx.eval(x)
        began = time.perf_counter()
        result = exchange(x)
        mx.eval(result)
        self.seconds += time.perf_counter() - began
        self.count += 1
        self.n_bytes += x.nbytes
        return result


comm_timer: CommTimer | None = None  # a profile sets it, on the rank that it looks at


class VocabParallelEmbedding:
    """A table of tokens: each rank looks up its own, and has zeros for the others.

    Args:
        table: ids N.. -> N..×E, for this rank's tokens, counted from 0.
        tokens: which tokens of the vocabulary these are.
        group: the ranks.
    """

    def __init__(self, table: Callable[[mx.array], mx.array], tokens: range, group: Group):
        self._table = table
        self._tokens = tokens
        self._group = group

    def __call__(self, ids: mx.array) -> mx.array:
        """Looks tokens up: ids N.. -> N..×E."""
        # [task 5.2.4 table]
        own = ids.astype(mx.int32) - self._tokens.start
        is_own = (own >= 0) & (own < len(self._tokens))
        rows = self._table(mx.where(is_own, own, 0))
        zero = mx.zeros((), rows.dtype)
        return all_reduce(mx.where(is_own[..., None], rows, zero), self._group)
        # [/task 5.2.4 table]


class ParallelLMHead:
    """Logits: each rank scores its own tokens, and all ranks get all of them.

    Args:
        head: R×E -> R×v, for this rank's tokens.
        vocab_per_rank: the largest v; the last rank may have less.
        vocab_size: V.
        group: the ranks.
    """

    def __init__(
        self,
        head: Callable[[mx.array], mx.array],
        vocab_per_rank: int,
        vocab_size: int,
        group: Group,
    ):
        self._head = head
        self._width = vocab_per_rank
        self._vocab_size = vocab_size
        self._group = group

    def __call__(self, x: mx.array) -> Any:
        """R×E -> R×V. Nothing is exchanged for no rows."""
        if x.shape[0] == 0:
            return mx.zeros((0, self._vocab_size), x.dtype)
        # [task 5.2.4 head]
        own = self._head(x)  # R×v
        own = mx.pad(own, [(0, 0), (0, self._width - own.shape[1])])
        parts = all_gather(own, self._group)  # N×R×width
        return parts.swapaxes(0, 1).reshape(x.shape[0], -1)[:, : self._vocab_size]
        # [/task 5.2.4 head]
