"""Logits processors: logit bias, penalties, masks, temperature, filters.

A logits processor takes logits (R×V, float32) and their R sampling rows, and returns new logits; it
never modifies its argument. `LOGITS_PROCESSORS` lists all of them in order of application: add new
ones there. Rows that a processor does not affect stay bit-identical.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ...sampler import apply_min_p, apply_top_k, apply_top_p
from ..inputs.sampling_params import SamplingParams
from ..scheduling.request import EngineRequest
from ..structured_output.bitmask import apply_grammar_bitmask
from ..structured_output.thinking_budget import apply_thinking_budget


@dataclass(frozen=True)
class SamplingRow:
    """One output position at which to sample a token.

    Attributes:
        request: the request that receives the token.
        position: index of the token in the request's output.
        draft_tokens: unverified tokens before this position.
    """

    request: EngineRequest
    position: int
    draft_tokens: tuple[int, ...] = ()

    @property
    def params(self) -> SamplingParams:
        """The request's sampling parameters."""
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
        """Whether EOS and stop tokens are masked at this position."""
        return self.position < self.params.min_tokens

    @property
    def forced_token(self) -> int | None:
        """The only token that the thinking budget allows here; usually None."""
        budget = self.request.thinking_budget
        if budget is None:
            return None
        token: int | None = budget.forced_token(self.request.token_ids, self.draft_tokens)
        return token


class TokenCounts:
    """Token counts of a request, for the penalties.

    Args:
        prompt_token_ids: the prompt.
        vocab_size: V.
    """

    def __init__(self, prompt_token_ids: Sequence[int], vocab_size: int):
        self._num_counted = len(prompt_token_ids)
        self._output_counts = array("f", bytes(4 * vocab_size))  # V
        in_prompt = bytearray(vocab_size)
        for token in prompt_token_ids:
            in_prompt[token] = 1
        self._prompt_mask = _from_buffer(in_prompt).astype(mx.bool_)  # V

    def after(
        self, token_ids: Sequence[int], draft_tokens: Sequence[int]
    ) -> tuple[mx.array, mx.array]:
        """Counts tokens as if the output continued with `draft_tokens`.

        Args:
            token_ids: the request's prompt and output, at least as long as in the last call.
            draft_tokens: unverified tokens.

        Returns:
            (occurrences in the output, presence in prompt or output), both V.
        """
        for token in token_ids[self._num_counted :]:
            self._output_counts[token] += 1
        self._num_counted = len(token_ids)
        for token in draft_tokens:
            self._output_counts[token] += 1
        counts = _from_buffer(self._output_counts)
        for token in draft_tokens:
            self._output_counts[token] -= 1
        return counts, self._prompt_mask | (counts > 0)


def process_logits(logits: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    """Applies all logits processors.

    Returns:
        R×V, float32; −inf for masked tokens. Greedy rows skip temperature and filters, which do
        not change the argmax.
    """
    x = logits.astype(mx.float32)
    for processor in LOGITS_PROCESSORS:
        x = processor(x, rows)
    return x


def apply_logit_bias(x: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    """Adds each row's `logit_bias`."""
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
    """Applies repetition, frequency and presence penalties."""
    indices = [index for index, row in enumerate(rows) if row.params.has_penalties]
    if not indices:
        return x
    penalized = [rows[index] for index in indices]
    counted = [
        row.request.token_counts.after(row.request.token_ids, row.draft_tokens) for row in penalized
    ]
    width = x.shape[-1]
    counts = mx.stack([counts[:width] for counts, _ in counted])  # R'×V
    present = mx.stack([present[:width] for _, present in counted])  # R'×V
    repetition = mx.array([row.params.repetition_penalty for row in penalized])[:, None]  # R'×1
    frequency = mx.array([row.params.frequency_penalty for row in penalized])[:, None]
    presence = mx.array([row.params.presence_penalty for row in penalized])[:, None]
    y = x[mx.array(indices)]
    y = mx.where(present, mx.where(y > 0, y / repetition, y * repetition), y)
    y = y - frequency * counts - presence * (counts > 0)
    return _replace_rows(x, indices, y)


def apply_min_tokens(x: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    """Masks EOS and stop tokens before `min_tokens`."""
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
    """Divides each row by its temperature; greedy rows are unchanged."""
    temperatures = [1.0 if row.params.is_greedy else row.params.temperature for row in rows]
    if all(temperature == 1 for temperature in temperatures):
        return x
    return x / mx.array(temperatures)[:, None]


def apply_filters(x: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    """Applies min-p, top-k and top-p, once per group of rows with equal parameters."""
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


def _from_buffer(values: Any) -> mx.array:
    """Copies an `array` or `bytearray` to MLX, whose type stubs omit buffer arguments."""
    return mx.array(values)
