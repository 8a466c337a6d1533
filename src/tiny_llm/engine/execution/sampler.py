"""From logits to tokens, for a batch of requests with parameters of their own.

A row's token depends on its logits, its parameters and its noise, and never on other rows. The
noise depends only on the seed, the number of the answer among the prompt's `n`, and the place in
the answer. So preemption, another batch or a hit in the prefix cache do not change an answer.

Tokens are drawn by the Gumbel-max trick: after −log(−log u), u uniform, is added to each
log-probability, the likeliest token is distributed as softmax. Greedy sampling adds no noise. The
trick also makes a draft model's guesses exact (see `draft_model.py`): for given noise, the choice
is a function of the logits.

The filters are those of `sampler.py`. Rows with the same parameters are filtered together.
"""

from array import array
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ...sampler import apply_min_p, apply_top_k, apply_top_p, greedy_sample, log_softmax
from ..inputs.sampling_params import SamplingParams
from ..scheduling.outputs import Logprobs
from ..scheduling.request import EngineRequest
from ..structured_output.bitmask import apply_grammar_bitmask
from ..structured_output.thinking_budget import apply_thinking_budget


class TokenCounts:
    """How often a request has each token, for penalties.

    Args:
        request: its tokens are counted as they are added.
        vocab_size: V.
    """

    def __init__(self, request: EngineRequest, vocab_size: int):
        self._token_ids = request.token_ids  # of prompt and answer; the list grows
        self._num_counted = request.num_prompt_tokens
        self._output_counts = array("f", bytes(4 * vocab_size))  # V
        in_prompt = bytearray(vocab_size)
        for token in self._token_ids[: self._num_counted]:
            in_prompt[token] = 1
        self._prompt_mask = _from_buffer(in_prompt).astype(mx.bool_)  # V

    def after(self, draft_tokens: Sequence[int]) -> tuple[mx.array, mx.array]:
        """The counts that penalties would use if the answer went on with `draft_tokens`.

        Returns:
            (how often each token is in the answer, whether it is there or in the prompt): V numbers
            each.
        """
        for token in self._token_ids[self._num_counted :]:
            self._output_counts[token] += 1
        self._num_counted = len(self._token_ids)
        for token in draft_tokens:
            self._output_counts[token] += 1
        counts = _from_buffer(self._output_counts)
        for token in draft_tokens:
            self._output_counts[token] -= 1
        return counts, self._prompt_mask | (counts > 0)


@dataclass(frozen=True)
class SamplingRow:
    """A place in an answer whose token is chosen.

    Attributes:
        request: of the answer.
        position: the token's place in the answer.
        draft_tokens: tokens before it that are not part of the answer yet.
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
        """Whether the token is the likeliest one of the unchanged logits."""
        params = self.params
        is_shaped = params.has_penalties or params.logit_bias or self.below_min_tokens
        is_shaped = is_shaped or self.forced_token is not None
        return params.is_greedy and not is_shaped and self.request.grammar is None

    @property
    def below_min_tokens(self) -> bool:
        """Whether the answer may not end here yet."""
        return self.position < self.params.min_tokens

    @property
    def forced_token(self) -> int | None:
        """The only token that may come here, where the thoughts must end; usually None."""
        budget = self.request.thinking_budget
        token: int | None = None if budget is None else budget.forced_token(self.draft_tokens)
        return token


def sample_tokens(
    logits: mx.array, rows: Sequence[SamplingRow], noise_width: int | None = None
) -> mx.array:
    """One token for each row.

    Args:
        logits: R×V.
        rows: R.
        noise_width: V of the model whose noise is used, if the logits are another model's. Both
            models then get the same noise for a token.

    Returns:
        R ids.
    """
    assert logits.shape[0] == len(rows)
    special = [index for index, row in enumerate(rows) if not row.is_argmax]
    if not special:
        return greedy_sample(logits)
    own = [rows[index] for index in special]
    shaped = process_logits(_rows(logits, special), own)
    drawn = [index for index, row in enumerate(own) if not row.params.is_greedy]
    if drawn:
        noise = gumbel_noise([own[index] for index in drawn], noise_width or logits.shape[-1])
        noise = noise[:, : logits.shape[-1]]
        if len(drawn) < len(own):
            noise = mx.zeros(shaped.shape).at[mx.array(drawn)].add(noise)
        shaped = shaped + noise
    tokens = greedy_sample(shaped)
    if len(special) == len(rows):
        return tokens
    plain = [index for index, row in enumerate(rows) if row.is_argmax]
    order = [*plain, *special]
    places = [order.index(index) for index in range(len(rows))]
    return mx.concatenate([greedy_sample(_rows(logits, plain)), tokens])[mx.array(places)]


def to_ints(tokens: mx.array) -> list[int]:
    """Token ids as numbers: waits for them."""
    return tokens.tolist()  # type: ignore[return-value]


def process_logits(logits: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    """The logits that tokens are drawn from, R×V, after bias, penalties, temperature and filters.

    Returns:
        R×V in float32, −inf where a filter dropped the token. Greedy rows have no temperature and
        no filters, which would not change the likeliest token.
    """
    x = _apply_penalties(_apply_logit_bias(logits.astype(mx.float32), rows), rows)
    x = apply_thinking_budget(apply_grammar_bitmask(_apply_min_tokens(x, rows), rows), rows)
    temperatures = [1.0 if row.params.is_greedy else row.params.temperature for row in rows]
    if any(temperature != 1 for temperature in temperatures):
        x = x / mx.array(temperatures)[:, None]
    return _apply_filters(x, rows)


def _apply_logit_bias(x: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    """Adds every row's `logit_bias`."""
    places = [
        (index, token, bias)
        for index, row in enumerate(rows)
        for token, bias in (row.params.logit_bias or {}).items()
        if token < x.shape[-1]
    ]
    if not places:
        return x
    row_ids, tokens, biases = zip(*places, strict=True)
    return x.at[mx.array(row_ids), mx.array(tokens)].add(mx.array(biases))


def _apply_penalties(x: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    """Subtracts the penalties of tokens that a row's request has already."""
    penalized = [index for index, row in enumerate(rows) if row.params.has_penalties]
    if not penalized:
        return x
    own = [rows[index] for index in penalized]
    counted = [row.request.token_counts.after(row.draft_tokens) for row in own]
    width = x.shape[-1]
    counts = mx.stack([counts[:width] for counts, _ in counted])  # R'×V
    present = mx.stack([present[:width] for _, present in counted])  # R'×V
    repetition = mx.array([row.params.repetition_penalty for row in own])[:, None]  # R'×1
    frequency = mx.array([row.params.frequency_penalty for row in own])[:, None]
    presence = mx.array([row.params.presence_penalty for row in own])[:, None]
    y = x[mx.array(penalized)]
    y = mx.where(present, mx.where(y > 0, y / repetition, y * repetition), y)
    y = y - frequency * counts - presence * (counts > 0)
    return _replace_rows(x, penalized, y)


def _apply_min_tokens(x: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    """Drops the tokens that would end an answer before its `min_tokens`."""
    places = [
        (index, token)
        for index, row in enumerate(rows)
        if row.below_min_tokens
        for token in row.request.end_token_ids
        if token < x.shape[-1]
    ]
    if not places:
        return x
    row_ids, tokens = zip(*places, strict=True)
    return x.at[mx.array(row_ids), mx.array(tokens)].add(-mx.inf)


def _apply_filters(x: mx.array, rows: Sequence[SamplingRow]) -> mx.array:
    """Applies min-p, top-k and top-p, once for all rows with the same parameters."""
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


def gumbel_noise(rows: Sequence[SamplingRow], width: int) -> mx.array:
    """−log(−log u) for every token of every row: R×width, float32."""
    keys = mx.stack([mx.random.key(_derive_seed(row.request.seed, row.position)) for row in rows])
    return mx.vmap(lambda key: mx.random.gumbel((width,), key=key))(keys)


def completion_seed(seed: int, index: int) -> int:
    """The seed of a prompt's answer number `index`."""
    return _derive_seed(seed, 2**63 + index)


def _derive_seed(seed: int, number: int) -> int:
    """64 bits that look random, and unrelated for arguments that differ in one bit."""
    return _splitmix64(_splitmix64(seed) ^ number)


def _splitmix64(x: int) -> int:
    """A permutation of the numbers below 2**64.

    Source: SplitMix64; Steele et al., "Fast splittable pseudorandom number generators" (2014).
    """
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def top_logprobs(logits: mx.array, counts: Sequence[int], chosen: Sequence[int]) -> list[Logprobs]:
    """The model's log-probabilities of each row's likeliest tokens and of the chosen one.

    Args:
        logits: R×V, as the model gave them.
        counts: how many of the likeliest tokens each row wants.
        chosen: the token of each row.

    Returns:
        For each row, log-probabilities by token id, the likeliest first; the chosen token is last
        if it is not among them.
    """
    likely = gather_logprobs(logits, max(counts), mx.array(list(chosen)))
    return logprobs_to_dicts(*likely, counts)


def gather_logprobs(
    logits: mx.array, num_logprobs: int, chosen: mx.array
) -> tuple[mx.array, mx.array]:
    """Each row's `num_logprobs` likeliest tokens, then the chosen one, and their log-probabilities.

    Args:
        logits: R×V.
        num_logprobs: tokens besides the chosen one; V at most are told.
        chosen: R ids.

    Returns:
        Ids and log-probabilities, both R×(most + 1).
    """
    logprobs = log_softmax(logits)
    num_logprobs = min(num_logprobs, logits.shape[-1])
    ids = chosen.astype(mx.int32)[:, None]
    if num_logprobs:
        top_ids = mx.argsort(-logprobs, axis=-1)[:, :num_logprobs].astype(mx.int32)
        ids = mx.concatenate([top_ids, ids], axis=1)
    return ids, mx.take_along_axis(logprobs, ids, axis=1)


def logprobs_to_dicts(ids: mx.array, logprobs: mx.array, counts: Sequence[int]) -> list[Logprobs]:
    """What `gather_logprobs` has found as dictionaries, as many tokens as each row wants."""
    names: Any = ids.tolist()
    values: Any = logprobs.tolist()
    result = []
    for count, tokens, numbers in zip(counts, names, values, strict=True):
        top = dict(zip(tokens[:count], numbers[:count], strict=True))
        top.setdefault(tokens[-1], numbers[-1])
        result.append(top)
    return result


def _rows(x: mx.array, indices: Sequence[int]) -> mx.array:
    return x if len(indices) == x.shape[0] else x[mx.array(list(indices))]


def _replace_rows(x: mx.array, indices: Sequence[int], rows: mx.array) -> mx.array:
    if len(indices) == x.shape[0]:
        return rows
    x = mx.array(x)  # a copy: the caller's is not changed
    x[mx.array(list(indices))] = rows
    return x


def _from_buffer(numbers: Any) -> mx.array:
    """A copy of an `array` or of a `bytearray`: MLX reads buffers, which its types do not say."""
    return mx.array(numbers)
