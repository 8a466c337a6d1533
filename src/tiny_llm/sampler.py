"""Samplers of the course: next-token log-probabilities to token ids.

Used by the course's decoding loops; the engine's sampler is in `engine/execution/sampler.py`.

A sampler is any function from B×V log-probabilities to B ids. Samplers from `make_sampler` also
expose the distribution they draw from. Filters shape that distribution: each sets the
log-probabilities of dropped tokens to −inf, row by row.
"""

import math
from collections.abc import Callable, Sequence

import mlx.core as mx

from . import kernels

Sampler = Callable[[mx.array], mx.array]


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
    """Returns the most likely id, the lowest one in a tie: N..×V -> N.."""
    if kernels.computes_on_cpu() and kernels.is_built():
        return kernels.argmax(logits)
    return mx.argmax(logits, axis=-1)


def sample(sampler: Sampler, logits: mx.array) -> mx.array:
    """Samples next tokens: logits B×V -> ids B.

    A sampler takes log-probabilities. A greedy sampler is called on the logits instead: the most
    likely token is the same, and skipping the normalization saves a pass over the vocabulary.
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
    """Creates a sampler that applies top-k, top-p, min-p, then temperature.

    Filters see the model's distribution, renormalized after each filter; the temperature reshapes
    the probabilities of the remaining tokens.

    Args:
        temp: temperature: 0 is greedy, 1 keeps the model's distribution, higher values flatten it.
        top_p: probability mass of the smallest set of most likely tokens to keep, in (0, 1].
        top_k: number of most likely tokens to keep, at least 1.
        min_p: minimum probability relative to the most likely token, in [0, 1].
        seed: random seed; None uses MLX's global random state.

    Raises:
        ValueError: a parameter is out of range.
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
    """A sampler that exposes the distribution it draws from.

    Args:
        temp, seed: see `make_sampler`.
        filters: filters B×V -> B×V, applied in order before the temperature.
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
        """Whether the most likely token is always chosen."""
        return self.temp == 0

    @property
    def is_seeded(self) -> bool:
        """Whether the sampler has a seed, which makes its draws reproducible."""
        return self._seed is not None

    def reseeded(self) -> "DistributionSampler":
        """Returns a copy with the random state reset to the seed."""
        return DistributionSampler(self.temp, self._filters, self._seed)

    def __call__(self, logprobs: mx.array) -> mx.array:
        """Samples one id per row: log-probabilities or logits B×V -> ids B."""
        if self.is_greedy:
            return greedy_sample(logprobs)
        return self.draw(self.logits(logprobs))

    def logits(self, logprobs: mx.array) -> mx.array:
        """Applies filters and temperature: B×V -> B×V unnormalized logits in float32.

        Dropped tokens are −inf. At temperature 0, keeps only the most likely token (the lowest id
        in a tie).
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
        """Returns the distribution that tokens are drawn from: B×V, rows sum to 1."""
        return mx.softmax(self.logits(logprobs), axis=-1)

    def draw(self, logits: mx.array) -> mx.array:
        """Draws one id per row's softmax with this sampler's random state: B×V -> B."""
        return mx.random.categorical(logits, axis=-1, key=self._next_key())

    def uniform(self, count: int) -> mx.array:
        """Draws `count` numbers in [0, 1) with this sampler's random state."""
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
    # Positions 0 … k − 1 of the partition hold the k most likely tokens, in any order.
    dropped = mx.argpartition(-logprobs, kth=top_k - 1, axis=-1)[..., top_k:]
    return mx.put_along_axis(logprobs, dropped, mx.array(-mx.inf, logprobs.dtype), axis=-1)
    # [/task 1.7.1 top-k]


def apply_top_p(logprobs: mx.array, top_p: float) -> mx.array:
    """Keeps the smallest set of top tokens with mass ≥ `top_p`: B×V -> B×V.

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


def _check_parameters(
    temp: float, top_p: float | None, top_k: int | None, min_p: float | None
) -> None:
    if not (math.isfinite(temp) and temp >= 0):
        raise ValueError(f"temperature must be a number ≥ 0 (0 is greedy), got {temp}.")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top-p must be in (0, 1] (1 keeps every token), got {top_p}.")
    if top_k is not None and (top_k != int(top_k) or top_k < 1):
        raise ValueError(f"top-k must be an integer of at least 1, got {top_k}.")
    if min_p is not None and not 0 <= min_p <= 1:
        raise ValueError(f"min-p must be in [0, 1] (0 keeps every token), got {min_p}.")
