"""Samplers: from the log-probabilities of the next token to the token.

A sampler is a plain function, B×V in, B out. It is composed of filters, each of which sets the
log-probability of the tokens that it drops to −inf, row by row.
"""

import math
from collections.abc import Callable

import mlx.core as mx

Sampler = Callable[[mx.array], mx.array]


def make_sampler(
    temp: float,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    seed: int | None = None,
) -> Sampler:
    """A sampler that applies top-k, then top-p, then min-p, then the temperature.

    The filters see the model's own distribution, renormalized after each; the temperature
    reshapes what is left of it.

    Args:
        temp: 0 takes the most likely token; 1 samples the model's distribution; more flattens it.
        top_p: keep the smallest set of most likely tokens whose mass reaches this; in (0, 1].
        top_k: keep this many most likely tokens; at least 1.
        min_p: keep tokens at least this fraction as likely as the likeliest; in [0, 1].
        seed: makes the sequence of draws repeatable; None draws from MLX's global state.

    Returns:
        A function: log-probabilities or logits B×V -> ids B.

    Raises:
        ValueError: a parameter is outside its range.
    """
    _check_parameters(temp, top_p, top_k, min_p)
    key = None if seed is None else mx.random.key(seed)

    def sample(logprobs: mx.array) -> mx.array:
        nonlocal key
        if temp == 0:
            return mx.argmax(logprobs, axis=-1)
        logprobs = logprobs.astype(mx.float32)
        if top_k is not None:
            logprobs = keep_top_k(logprobs, top_k)
        if top_p is not None:
            logprobs = keep_top_p(logprobs, top_p)
        if min_p is not None:
            logprobs = keep_min_p(logprobs, min_p)
        draw = None
        if key is not None:
            key, draw = mx.random.split(key)
        return mx.random.categorical(logprobs / temp, axis=-1, key=draw)

    return sample


def keep_top_k(logprobs: mx.array, top_k: int) -> mx.array:
    """Drops all but the `top_k` most likely tokens of each row: B×V -> B×V."""
    if top_k >= logprobs.shape[-1]:
        return logprobs
    # Positions 0 … k − 1 of the partition hold the k largest, in any order.
    dropped = mx.argpartition(-logprobs, kth=top_k - 1, axis=-1)[..., top_k:]
    return mx.put_along_axis(logprobs, dropped, mx.array(-mx.inf, logprobs.dtype), axis=-1)


def keep_top_p(logprobs: mx.array, top_p: float) -> mx.array:
    """Drops all but the smallest set of most likely tokens with mass ≥ `top_p`: B×V -> B×V.

    A token stays if the mass of the tokens before it, likeliest first, is still below `top_p`.
    The first has nothing before it, so that one token always stays.
    """
    if top_p >= 1:
        return logprobs
    order = mx.argsort(-logprobs, axis=-1)  # likeliest first
    ranked = mx.take_along_axis(logprobs, order, axis=-1)
    mass = mx.softmax(ranked, axis=-1)
    mass_before = mx.cumsum(mass, axis=-1, inclusive=False)
    ranked = mx.where(mass_before < top_p, ranked, -mx.inf)
    return mx.put_along_axis(logprobs, order, ranked, axis=-1)


def keep_min_p(logprobs: mx.array, min_p: float) -> mx.array:
    """Drops tokens less than `min_p` times as likely as the likeliest of their row: B×V -> B×V."""
    if min_p == 0:
        return logprobs
    floor = mx.max(logprobs, axis=-1, keepdims=True) + math.log(min_p)
    return mx.where(logprobs < floor, -mx.inf, logprobs)


def _check_parameters(
    temp: float, top_p: float | None, top_k: int | None, min_p: float | None
) -> None:
    if not (math.isfinite(temp) and temp >= 0):
        raise ValueError(f"temperature is {temp}; it must be a number ≥ 0 (0 is greedy).")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top-p is {top_p}; it must be in (0, 1] (1 keeps every token).")
    if top_k is not None and (top_k != int(top_k) or top_k < 1):
        raise ValueError(f"top-k is {top_k}; it must be a whole number ≥ 1.")
    if min_p is not None and not 0 <= min_p <= 1:
        raise ValueError(f"min-p is {min_p}; it must be in [0, 1] (0 keeps every token).")
