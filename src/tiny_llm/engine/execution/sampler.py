"""Sampler: logits to tokens, with per-row sampling parameters.

The course's samplers are in `tiny_llm/sampler.py`; both share the filters.

Batch invariance: a row's token depends on its own logits, parameters and noise, never on other
rows. The noise depends only on the seed, the completion index and the position in the output.
Preemption, batch composition and prefix cache hits therefore do not change the output.

Sampling uses the Gumbel-max trick: the argmax of logits plus −log(−log u), with u uniform, follows
the softmax distribution. Greedy rows get no noise. Given the noise, the token is a function of the
logits, which also makes speculative decoding exact (see `draft_model.py`).
"""

from collections.abc import Sequence

import mlx.core as mx

from ...sampler import greedy_sample
from ..scheduling.outputs import Logprobs
from .logits_processors import SamplingRow, process_logits
from .logprobs import gather_logprobs, logprobs_to_dicts


def sample_tokens(
    logits: mx.array, rows: Sequence[SamplingRow], noise_width: int | None = None
) -> mx.array:
    """Samples one token per row.

    Args:
        logits: R×V.
        rows: R output positions.
        noise_width: the target's V if the logits are the draft model's: both models then draw the
            same noise for a token.

    Returns:
        R token ids.
    """
    assert logits.shape[0] == len(rows)
    special = [index for index, row in enumerate(rows) if not row.is_argmax]
    if not special:
        return greedy_sample(logits)
    special_rows = [rows[index] for index in special]
    processed = process_logits(_rows(logits, special), special_rows)
    random = [index for index, row in enumerate(special_rows) if not row.params.is_greedy]
    if random:
        noise = gumbel_noise(
            [special_rows[index] for index in random], noise_width or logits.shape[-1]
        )
        noise = noise[:, : logits.shape[-1]]
        if len(random) < len(special_rows):
            noise = mx.zeros(processed.shape).at[mx.array(random)].add(noise)
        processed = processed + noise
    tokens = greedy_sample(processed)
    if len(special) == len(rows):
        return tokens
    plain = [index for index, row in enumerate(rows) if row.is_argmax]
    order = [*plain, *special]
    inverse = [order.index(index) for index in range(len(rows))]
    return mx.concatenate([greedy_sample(_rows(logits, plain)), tokens])[mx.array(inverse)]


def to_ints(tokens: mx.array) -> list[int]:
    """Evaluates token ids and converts them to a list."""
    return tokens.tolist()  # type: ignore[return-value]


def gumbel_noise(rows: Sequence[SamplingRow], width: int) -> mx.array:
    """Draws −log(−log u) for each row and token: R×width, float32."""
    keys = mx.stack([mx.random.key(_derive_seed(row.request.seed, row.position)) for row in rows])
    return mx.vmap(lambda key: mx.random.gumbel((width,), key=key))(keys)


def completion_seed(seed: int, index: int) -> int:
    """Derives the seed of completion `index` of a prompt."""
    return _derive_seed(seed, 2**63 + index)


def _derive_seed(seed: int, number: int) -> int:
    """Hashes two integers to 64 bits."""
    return _splitmix64(_splitmix64(seed) ^ number)


def _splitmix64(x: int) -> int:
    """A bijection on [0, 2**64) that scrambles its argument's bits.

    Source: SplitMix64; Steele et al., "Fast splittable pseudorandom number generators" (2014).
    """
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


class SamplerOutput:
    """Sampled tokens, NaN flags and logprobs of a step, evaluated asynchronously.

    An array becomes readable once everything submitted to the device with it has been computed.
    These outputs are therefore submitted separately, before the next step.

    Args:
        logits: R×V.
        rows: R output positions.

    Attributes:
        tokens: R token ids, possibly not evaluated yet.
    """

    def __init__(self, logits: mx.array, rows: Sequence[SamplingRow]):
        self.tokens = sample_tokens(logits, rows)
        self._logits = logits
        chosen_logits = mx.take_along_axis(logits, self.tokens[:, None], axis=1)[:, 0]  # R
        self._is_nan = mx.isnan(chosen_logits)
        # By row: number of top logprobs requested.
        self._num_logprobs: dict[int, int] = {
            index: row.params.logprobs
            for index, row in enumerate(rows)
            if row.params.logprobs is not None
        }
        self._gathered: tuple[mx.array, ...] = ()
        if self._num_logprobs:
            indices = mx.array(list(self._num_logprobs))
            num_logprobs = max(self._num_logprobs.values())
            self._gathered = gather_logprobs(logits[indices], num_logprobs, self.tokens[indices])
        mx.async_eval(self.tokens, self._is_nan, *self._gathered)

    def read(self) -> tuple[list[int], list[int], dict[int, Logprobs]]:
        """Blocks until the outputs are computed.

        Returns:
            (token of each row, rows with NaN logits, logprobs by row where requested).
        """
        chosen = to_ints(self.tokens)
        nan_rows = rows_with_nan(self._logits, chosen, self._is_nan)
        if not self._gathered:
            return chosen, nan_rows, {}
        ids, logprobs = self._gathered
        dicts = logprobs_to_dicts(ids, logprobs, list(self._num_logprobs.values()))
        return chosen, nan_rows, dict(zip(self._num_logprobs, dicts, strict=True))


def rows_with_nan(logits: mx.array, chosen: Sequence[int], chosen_is_nan: mx.array) -> list[int]:
    """Returns the rows with NaN logits, from which no token can be sampled.

    A NaN hidden state makes its whole row NaN; the argmax is then token 0 or a NaN. Only rows with
    token 0 are scanned, because scanning all logits would take longer than sampling.

    Args:
        logits: R×V.
        chosen: the token of each row.
        chosen_is_nan: R, whether the logit of the chosen token is NaN.
    """
    is_nan: list[bool] = chosen_is_nan.tolist()  # type: ignore[assignment]
    suspects = [row for row, token in enumerate(chosen) if token == 0 and not is_nan[row]]
    for row in suspects:
        is_nan[row] = bool(mx.any(mx.isnan(logits[row])))
    return [row for row, broken in enumerate(is_nan) if broken]


def _rows(x: mx.array, indices: Sequence[int]) -> mx.array:
    return x if len(indices) == x.shape[0] else x[mx.array(list(indices))]
