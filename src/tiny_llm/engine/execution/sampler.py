"""Sampler: logits to tokens and log-probabilities, by rows of parameters.

Written twice on purpose: the course's samplers, one distribution per batch, are in `sampler.py`.

Batch invariance: a row's token depends only on its own logits, parameters and noise, and the noise
only on the seed, the completion index and the position in the output. Preemption, batch composition
and prefix cache hits therefore do not change the output.

Sampling uses the Gumbel-max trick: the argmax of logits plus −log(−log u), with u uniform, follows
the softmax distribution. Given the noise, the token is a function of the logits, which also makes
speculative decoding exact (see `draft_model.py`).

A logits processor takes logits (R×V, float32) and their R sampling rows, and returns new logits; it
never modifies its argument. Rows that it does not affect stay bit-identical. Log-probabilities are
computed before any logits processor.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ...sampling_ops import apply_min_p, apply_top_k, apply_top_p, greedy_sample, log_softmax
from ..inputs.sampling_params import SamplingParams
from ..scheduling.request import EngineRequest, Logprobs
from ..structured_output.bitmask import apply_grammar_bitmask
from ..structured_output.thinking_budget import apply_thinking_budget


@dataclass(frozen=True)
class SamplingRow:
    """One output position at which to sample a token."""

    request: EngineRequest
    position: int  # index of the token in the request's output
    draft_tokens: tuple[int, ...] = ()  # unverified tokens before this position

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def is_argmax(self) -> bool:
        """Whether the token is the argmax of the unprocessed logits."""
        params = self.params
        is_processed = params.has_penalties or params.logit_bias or self.below_min_tokens
        is_processed = is_processed or self.forced_token is not None
        return params.is_greedy and not is_processed and self.request.grammar is None

    @property
    def below_min_tokens(self) -> bool:
        return self.position < self.params.min_tokens

    @property
    def forced_token(self) -> int | None:
        """Token id of `</think>` if no thinking budget is left here, else None."""
        budget = self.request.thinking_budget
        if budget is None:
            return None
        token: int | None = budget.forced_token(self.request.token_ids, self.draft_tokens)
        return token


class TokenCounts:
    def __init__(self, prompt_token_ids: Sequence[int], vocab_size: int):
        self._num_counted = len(prompt_token_ids)
        self._output_counts = array("f", bytes(4 * vocab_size))  # by token id
        in_prompt = bytearray(vocab_size)
        for token in prompt_token_ids:
            in_prompt[token] = 1
        self._prompt_mask = mx.array(in_prompt).astype(mx.bool_)  # type: ignore[arg-type]  # by token id

    def after(
        self, token_ids: Sequence[int], draft_tokens: Sequence[int]
    ) -> tuple[mx.array, mx.array]:
        """Counts tokens as if the output continued with `draft_tokens`.

        `token_ids`, the prompt and the output so far, must extend those of the last call.

        Returns:
            (occurrences in the output, presence in prompt or output), both V.
        """
        for token in token_ids[self._num_counted :]:
            self._output_counts[token] += 1
        self._num_counted = len(token_ids)
        for token in draft_tokens:
            self._output_counts[token] += 1
        counts = mx.array(self._output_counts)  # type: ignore[arg-type]
        for token in draft_tokens:
            self._output_counts[token] -= 1
        return counts, self._prompt_mask | (counts > 0)


def process_logits(logits: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    """Applies all logits processors; returns R×V float32, −inf where masked.

    Greedy rows skip temperature and filters, which do not change the argmax.
    """
    x = logits.astype(mx.float32)
    for processor in LOGITS_PROCESSORS:
        x = processor(x, rows)
    return x


def apply_logit_bias(x: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    entries = [
        (index, token, bias)
        for index, row in enumerate(rows)
        for token, bias in (row.params.logit_bias or {}).items()
        if token < x.shape[-1]
    ]
    if not entries:
        return x
    row_ids, tokens, biases = zip(*entries, strict=True)
    return x.at[mx.array(row_ids), mx.array(tokens)].add(mx.array(biases))


def apply_penalties(x: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    indices = [index for index, row in enumerate(rows) if row.params.has_penalties]
    if not indices:
        return x
    penalized = [rows[index] for index in indices]
    counted = [
        row.request.token_counts.after(row.request.token_ids, row.draft_tokens) for row in penalized
    ]
    width = x.shape[-1]
    counts = mx.stack([counts[:width] for counts, _ in counted])  # R'×V, for R' penalized rows
    present = mx.stack([present[:width] for _, present in counted])  # R'×V
    repetition = mx.array([row.params.repetition_penalty for row in penalized])[:, None]  # R'×1
    frequency = mx.array([row.params.frequency_penalty for row in penalized])[:, None]
    presence = mx.array([row.params.presence_penalty for row in penalized])[:, None]
    y = x[mx.array(indices)]
    y = mx.where(present, mx.where(y > 0, y / repetition, y * repetition), y)
    y = y - frequency * counts - presence * (counts > 0)
    return _replace_rows(x, indices, y)


def apply_min_tokens(x: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    entries = [
        (index, token)
        for index, row in enumerate(rows)
        if row.below_min_tokens
        for token in row.request.end_token_ids
        if token < x.shape[-1]
    ]
    if not entries:
        return x
    row_ids, tokens = zip(*entries, strict=True)
    return x.at[mx.array(row_ids), mx.array(tokens)].add(-mx.inf)


def apply_temperature(x: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    temperatures = [1.0 if row.params.is_greedy else row.params.temperature for row in rows]
    if all(temperature == 1 for temperature in temperatures):
        return x
    return x / mx.array(temperatures)[:, None]


def apply_filters(x: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    """Applies min-p, top-k and top-p, once per group of rows with the same ones."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        params = row.params
        filters = (params.min_p, max(0, params.top_k), params.top_p)
        if not params.is_greedy and filters != (0, 0, 1):
            groups[filters].append(index)
    for members in groups.values():
        params = rows[members[0]].params
        y = apply_min_p(x[mx.array(members)], params.min_p)
        if params.top_k > 0:
            y = apply_top_k(y, params.top_k)
        x = _replace_rows(x, members, apply_top_p(y, params.top_p))
    return x


LogitsProcessor = Callable[[mx.array, Sequence[SamplingRow]], mx.array]

LOGITS_PROCESSORS: tuple[LogitsProcessor, ...] = (
    apply_logit_bias,
    apply_penalties,
    apply_min_tokens,
    apply_grammar_bitmask,
    apply_thinking_budget,
    apply_temperature,
    apply_filters,
)


def _replace_rows(x: mx.array, indices: Sequence[int], rows: mx.array) -> mx.array:
    if len(indices) == x.shape[0]:
        return rows
    x = mx.array(x)  # a copy: the argument is not modified
    x[mx.array(list(indices))] = rows
    return x


def sample_tokens(
    logits: mx.array, rows: Sequence[SamplingRow], noise_width: int | None = None
) -> mx.array:
    """Samples one token per row; returns R token ids.

    Args:
        logits: R×V.
        noise_width: the target's V if the logits are the draft model's, so that both models draw
            the same noise for a token.
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
    return tokens.tolist()  # type: ignore[return-value]


def gumbel_noise(rows: Sequence[SamplingRow], width: int) -> mx.array:
    """Draws −log(−log u) for each row and token: R×width, float32."""
    keys = mx.stack([mx.random.key(_derive_seed(row.request.seed, row.position)) for row in rows])
    return mx.vmap(lambda key: mx.random.gumbel((width,), key=key))(keys)


def completion_seed(seed: int, index: int) -> int:
    return _derive_seed(seed, 2**63 + index)


def _derive_seed(seed: int, number: int) -> int:
    return _splitmix64(_splitmix64(seed) ^ number)


def _splitmix64(x: int) -> int:
    """A bijection on [0, 2**64) that scrambles its argument's bits.

    Source: SplitMix64; Steele et al., "Fast splittable pseudorandom number generators" (2014).
    """
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def top_logprobs(logits: mx.array, counts: Sequence[int], chosen: Sequence[int]) -> list[Logprobs]:
    """Computes log-probabilities for each row's top tokens and its chosen token.

    Args:
        logits: R×V, before any logits processor.
        counts: number of top tokens for each row.

    Returns:
        For each row, log-probabilities by token id, in descending order; the chosen token is last
        if it is not among the top tokens.
    """
    gathered = gather_logprobs(logits, max(counts), mx.array(list(chosen)))
    return logprobs_to_dicts(*gathered, counts)


def gather_logprobs(
    logits: mx.array, num_logprobs: int, chosen: mx.array
) -> tuple[mx.array, mx.array]:
    """Gathers log-probabilities of each row's top tokens, then its chosen token.

    Args:
        logits: R×V.
        num_logprobs: number of top tokens per row, K; clamped to V.

    Returns:
        Token ids and log-probabilities, both R×(K + 1).
    """
    logprobs = log_softmax(logits)
    num_logprobs = min(num_logprobs, logits.shape[-1])
    ids = chosen.astype(mx.int32)[:, None]
    if num_logprobs:
        top_ids = mx.argsort(-logprobs, axis=-1)[:, :num_logprobs].astype(mx.int32)
        ids = mx.concatenate([top_ids, ids], axis=1)
    return ids, mx.take_along_axis(logprobs, ids, axis=1)


def logprobs_to_dicts(ids: mx.array, logprobs: mx.array, counts: Sequence[int]) -> list[Logprobs]:
    """Converts `gather_logprobs`' arrays to dicts with counts[row] top tokens."""
    id_rows: Any = ids.tolist()
    logprob_rows: Any = logprobs.tolist()
    dicts = []
    for count, tokens, values in zip(counts, id_rows, logprob_rows, strict=True):
        entries = dict(zip(tokens[:count], values[:count], strict=True))
        entries.setdefault(tokens[-1], values[-1])
        dicts.append(entries)
    return dicts


class SamplerOutput:
    """Sampled tokens, NaN flags and logprobs of a step, evaluated asynchronously.

    An array becomes readable once everything submitted to the device with it has been computed.
    These outputs are therefore submitted separately, before the next step.

    Attributes:
        tokens: one per row, possibly not evaluated yet.
    """

    def __init__(self, logits: mx.array, rows: Sequence[SamplingRow]):
        self.tokens = sample_tokens(logits, rows)
        self._logits = logits
        chosen_logits = mx.take_along_axis(logits, self.tokens[:, None], axis=1)[:, 0]  # R
        self._is_nan = mx.isnan(chosen_logits)
        self._num_logprobs: dict[int, int] = {  # requested, by row
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

    A NaN hidden state makes its whole row NaN; the argmax is then token 0 or a token whose logit
    is NaN. Only rows with token 0 are scanned, because scanning all logits would take longer than
    sampling.
    """
    is_nan: list[bool] = chosen_is_nan.tolist()  # type: ignore[assignment]
    suspects = [row for row, token in enumerate(chosen) if token == 0 and not is_nan[row]]
    for row in suspects:
        is_nan[row] = bool(mx.any(mx.isnan(logits[row])))
    return [row for row, broken in enumerate(is_nan) if broken]


def _rows(x: mx.array, indices: Sequence[int]) -> mx.array:
    return x if len(indices) == x.shape[0] else x[mx.array(list(indices))]
