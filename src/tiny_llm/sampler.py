"""Samplers: from the log-probabilities of the next token to the token.

Any function from B×V log-probabilities to B ids is a sampler. Those of `make_sampler` can also say
which distribution they draw from. Filters shape it: each sets the log-probability of the tokens
that it drops to −inf, row by row.
"""

import math
from collections.abc import Callable, Sequence

import mlx.core as mx

from . import kernels

Sampler = Callable[[mx.array], mx.array]


def log_softmax(logits: mx.array) -> mx.array:
    """Logits N..×V -> log-probabilities N..×V in float32."""
    logits = logits.astype(mx.float32)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def greedy_sample(logits: mx.array) -> mx.array:
    """The most likely ids, of equally likely ones the first: N..×V -> N.."""
    if kernels.computes_on_cpu() and kernels.is_built():
        return kernels.argmax(logits)
    return mx.argmax(logits, axis=-1)


def sample(sampler: Sampler, logits: mx.array) -> mx.array:
    """The sampler's tokens: logits B×V -> ids B.

    A sampler gets log-probabilities. A greedy one gets the logits, because its token is the same
    and this saves a pass over the vocabulary.
    """
    if isinstance(sampler, DistributionSampler) and sampler.is_greedy:
        return sampler(logits)
    return sampler(log_softmax(logits))


def make_sampler(
    temp: float,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    seed: int | None = None,
) -> "DistributionSampler":
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
    filters: list[Callable[[mx.array], mx.array]] = []
    if top_k is not None:
        filters.append(lambda logprobs: apply_top_k(logprobs, top_k))
    if top_p is not None:
        filters.append(lambda logprobs: apply_top_p(logprobs, top_p))
    if min_p is not None:
        filters.append(lambda logprobs: apply_min_p(logprobs, min_p))
    return DistributionSampler(temp, filters, seed)


class DistributionSampler:
    """A sampler that can say which distribution it draws from.

    Args:
        temp: 0 for the most likely token, otherwise the temperature.
        filters: applied in this order, each B×V -> B×V, before the temperature.
        seed: makes the sequence of draws repeatable; None draws from MLX's global state.
    """

    def __init__(
        self,
        temp: float,
        filters: Sequence[Callable[[mx.array], mx.array]] = (),
        seed: int | None = None,
    ):
        self.temp = temp
        self._filters = filters
        self._seed = seed
        self._key = None if seed is None else mx.random.key(seed)

    @property
    def is_greedy(self) -> bool:
        """Whether it always takes the most likely token."""
        return self.temp == 0

    @property
    def is_seeded(self) -> bool:
        """Whether its draws can be repeated."""
        return self._seed is not None

    def reseeded(self) -> "DistributionSampler":
        """The same sampler at the beginning of its random numbers."""
        return DistributionSampler(self.temp, self._filters, self._seed)

    def __call__(self, logprobs: mx.array) -> mx.array:
        """Log-probabilities or logits B×V -> ids B."""
        if self.is_greedy:
            return greedy_sample(logprobs)
        return self.draw(self.logits(logprobs))

    def logits(self, logprobs: mx.array) -> mx.array:
        """The logits that are drawn from, after filters and temperature: B×V -> B×V in float32.

        A dropped token has −inf; the others are not normalized. At temperature 0 all tokens are
        dropped but the likeliest, of equally likely ones the first.
        """
        # [task 1.7.1 temperature]
        logprobs = logprobs.astype(mx.float32)
        if self.is_greedy:
            best = mx.argmax(logprobs, axis=-1, keepdims=True)
            return mx.where(mx.arange(logprobs.shape[-1]) == best, 0.0, -mx.inf)
        for keep in self._filters:
            logprobs = keep(logprobs)
        return logprobs / self.temp
        # [/task 1.7.1 temperature]

    def probabilities(self, logprobs: mx.array) -> mx.array:
        """The distribution of the sampler's tokens: B×V -> B×V, each row of sum 1."""
        return mx.softmax(self.logits(logprobs), axis=-1)

    def draw(self, logits: mx.array) -> mx.array:
        """One id from each row's softmax, B×V -> B, by this sampler's random numbers."""
        return mx.random.categorical(logits, axis=-1, key=self._next_key())

    def uniform(self, count: int) -> mx.array:
        """`count` numbers in [0, 1), by this sampler's random numbers."""
        return mx.random.uniform(shape=(count,), key=self._next_key())

    def _next_key(self) -> mx.array | None:
        if self._key is None:
            return None
        self._key, key = mx.random.split(self._key)
        return key


def apply_top_k(logprobs: mx.array, top_k: int) -> mx.array:
    """Drops all but the `top_k` most likely tokens of each row: B×V -> B×V."""
    # [task 1.7.1 top-k]
    if top_k >= logprobs.shape[-1]:
        return logprobs
    # Positions 0 … k − 1 of the partition hold the k largest, in any order.
    dropped = mx.argpartition(-logprobs, kth=top_k - 1, axis=-1)[..., top_k:]
    return mx.put_along_axis(logprobs, dropped, mx.array(-mx.inf, logprobs.dtype), axis=-1)
    # [/task 1.7.1 top-k]


def apply_top_p(logprobs: mx.array, top_p: float) -> mx.array:
    """Drops all but the smallest set of most likely tokens with mass ≥ `top_p`: B×V -> B×V.

    A token stays if the mass of the tokens before it, likeliest first, is still below `top_p`.
    No mass comes before the first, so at least one token stays. Masses are the row's softmax: what
    a filter before dropped has none, and the rest has 1 together.
    """
    # [task 1.7.1 top-p]
    if top_p >= 1:
        return logprobs
    order = mx.argsort(-logprobs, axis=-1)  # likeliest first
    ranked = mx.take_along_axis(logprobs, order, axis=-1)
    mass = mx.softmax(ranked, axis=-1)
    mass_before = mx.cumsum(mass, axis=-1, inclusive=False)
    ranked = mx.where(mass_before < top_p, ranked, -mx.inf)
    return mx.put_along_axis(logprobs, order, ranked, axis=-1)
    # [/task 1.7.1 top-p]


def apply_min_p(logprobs: mx.array, min_p: float) -> mx.array:
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
