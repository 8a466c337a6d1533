"""Samplers of the course: next-token log-probabilities to token ids.

Written twice on purpose: here for one distribution at a time, in `engine/execution/sampler.py` for
batches whose rows have their own parameters and seeds. Both use the filters of `sampling_ops`.

A sampler is any function from B×V log-probabilities to B ids. Samplers from `make_sampler` also
expose the distribution they draw from.
"""

import math
from collections.abc import Callable, Sequence

import mlx.core as mx

from .sampling_ops import apply_min_p, apply_top_k, apply_top_p, greedy_sample, log_softmax

Sampler = Callable[[mx.array], mx.array]


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

    Filters see the model's distribution; top-p renormalizes the masses of the tokens that top-k
    kept. The temperature reshapes the probabilities of the remaining tokens.

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
