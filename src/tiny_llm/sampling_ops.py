"""Sampling operations: log-softmax, greedy sampling, top-k, top-p, min-p.

Shared by the samplers of the course and the engine. Each filter sets the log-probabilities of
dropped tokens to −inf, row by row.
"""

import math

import mlx.core as mx

from . import kernels

# Maximum number of terms in a partial sum of `log_softmax`. Many short sums have smaller rounding
# errors than one long sum.
SUM_BLOCK = 512


def log_softmax(logits: mx.array) -> mx.array:
    """Converts logits N..×V to log-probabilities N..×V in float32.

    The normalizer is the log-sum-exp of per-block log-sum-exps. On the CPU, `mx.logsumexp` adds all
    terms sequentially, which for V = 151,936 is off by up to 3e-4.
    """
    logits = logits.astype(mx.float32)
    totals = logits
    while totals.shape[-1] > SUM_BLOCK:
        padding = [(0, 0)] * (totals.ndim - 1) + [(0, -totals.shape[-1] % SUM_BLOCK)]
        padded = mx.pad(totals, padding, constant_values=-mx.inf)
        totals = mx.logsumexp(mx.unflatten(padded, -1, (-1, SUM_BLOCK)), axis=-1)
    return logits - mx.logsumexp(totals, axis=-1, keepdims=True)


def greedy_sample(logits: mx.array) -> mx.array:
    """Returns the id of the largest logit, the lowest id in a tie: N..×V -> N.."""
    if kernels.computes_on_cpu() and kernels.is_built():
        return kernels.argmax(logits)
    return mx.argmax(logits, axis=-1)


def apply_top_k(logprobs: mx.array, top_k: int) -> mx.array:
    """Drops all but the `top_k` ≥ 1 most likely tokens of each row: B×V -> B×V."""
    # [task 1.7.1 top-k]
    if top_k >= logprobs.shape[-1]:
        return logprobs
    # Positions 0 … k − 1 of the partition hold the k most likely tokens, in any order.
    dropped = mx.argpartition(-logprobs, kth=top_k - 1, axis=-1)[..., top_k:]
    return mx.put_along_axis(logprobs, dropped, mx.array(-mx.inf, logprobs.dtype), axis=-1)
    # [/task 1.7.1 top-k]


def apply_top_p(logprobs: mx.array, top_p: float) -> mx.array:
    """Keeps the smallest set of most likely tokens with total mass ≥ `top_p` > 0: B×V -> B×V.

    A token is kept if the more likely tokens' total mass is below `top_p`; the most likely token is
    therefore always kept. A token's mass is its softmax over the row: tokens dropped by an earlier
    filter have mass 0, and the masses of the remaining ones are renormalized.
    """
    # [task 1.7.1 top-p]
    if top_p >= 1:
        return logprobs
    order = mx.argsort(-logprobs, axis=-1)  # descending probability
    ranked = mx.take_along_axis(logprobs, order, axis=-1)
    mass = mx.softmax(ranked, axis=-1)
    mass_before = mx.cumsum(mass, axis=-1, inclusive=False)
    ranked = mx.where(mass_before < top_p, ranked, -mx.inf)
    return mx.put_along_axis(logprobs, order, ranked, axis=-1)
    # [/task 1.7.1 top-p]


def apply_min_p(logprobs: mx.array, min_p: float) -> mx.array:
    """Drops tokens below `min_p` times the row's highest probability: B×V -> B×V."""
    if min_p == 0:
        return logprobs
    floor = mx.max(logprobs, axis=-1, keepdims=True) + math.log(min_p)
    return mx.where(logprobs < floor, -mx.inf, logprobs)
