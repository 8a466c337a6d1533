"""Draft tokens from n-grams or a grammar; verification and statistics.

Outputs repeat earlier text: edited code, extracted fields and names in a summary come from the
prompt, and list items share a format. The last n-gram is therefore looked up among all earlier
tokens, and its continuation there becomes the draft, for the price of a dictionary lookup:

    … the capital of France is Paris. Q: What is the capital of France? A: The capital of
                ^^^^^^^^^^^^^^^^^^^^                              last tokens     ^^^^^^^^^^
                 draft tokens

How many draft tokens pay off depends on acceptance rate and load: a few more tokens are nearly free
in a memory-bound step with one sequence, but not in a large batch. The acceptance rate is estimated
per match length, from all tokens, drafted or not.

Where a grammar allows only one continuation (after `{"name": "`, the rest of a tool's name), the
next tokens are known, and a single step verifies them as draft tokens. This saves decoding steps
without changing the output.

Source: Saxena, "Prompt lookup decoding" (2023),
https://github.com/apoorvumang/prompt-lookup-decoding
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from ..scheduling.request import EngineRequest

NGRAM_LENGTHS = (4, 2)  # lengths of the n-grams to look up, longest first
MAX_NGRAM_DRAFT_TOKENS = 7  # plus the sampled token: 8 rows fill one tile of the matmul kernel
MAX_MATCH_LENGTH = 8  # longer matches share one acceptance rate, which hardly depends on length
ESTIMATE_WINDOW = 8  # tokens in the moving average of an acceptance rate
FREE_TOKENS_PER_STEP = 8  # number of tokens computed in the time it takes to read the weights

_BITS = 20  # bits per token in an n-gram's key


def break_even_probability(num_running: int) -> float:
    """Acceptance probability above which a draft token raises the throughput.

    A step takes `FREE_TOKENS_PER_STEP` units of time to read the weights, plus one per token. A
    draft token pays off if it yields more tokens per unit than the step without it.

    Args:
        num_running: number of running sequences, one token each.
    """
    # [task 5.6.2 pays]
    return num_running / (num_running + FREE_TOKENS_PER_STEP)
    # [/task 5.6.2 pays]


class AcceptanceRates:
    """Moving averages of the next draft token's acceptance rate, by match length."""

    def __init__(self) -> None:
        self._rates = [0.0] + [1 - 1 / length for length in range(1, MAX_MATCH_LENGTH + 1)]

    def rate(self, match_length: int) -> float:
        return self._rates[min(match_length, MAX_MATCH_LENGTH)]

    def update(self, match_length: int, is_accepted: bool) -> None:
        """Moves the rate 1 / `ESTIMATE_WINDOW` of the way to 1 (accepted) or 0."""
        # [task 5.6.2 update]
        length = min(match_length, MAX_MATCH_LENGTH)
        self._rates[length] += (is_accepted - self._rates[length]) / ESTIMATE_WINDOW
        # [/task 5.6.2 update]


class NgramIndex:
    """Incremental n-gram index over a growing token list.

    Args:
        token_ids: the growing token list; `update` indexes new tokens.

    Attributes:
        next_position: position of the predicted next token; −1 without a match.
        match_length: number of tokens before `next_position` that match the end of the list; 0
            without a match.
        acceptance: acceptance rates of the predictions so far.
    """

    def __init__(self, token_ids: Sequence[int]):
        self.next_position = -1
        self.match_length = 0
        self.acceptance = AcceptanceRates()
        self._token_ids = token_ids
        self._num_read = 0
        self._key = 0  # key of the last `NGRAM_LENGTHS[0]` tokens
        # By n-gram length: (key mask, position after the last occurrence by key).
        self._positions: list[tuple[int, dict[int, int]]] = [
            ((1 << _BITS * length) - 1, {}) for length in NGRAM_LENGTHS
        ]

    def update(self) -> None:
        """Indexes new tokens, follows the match, and updates the acceptance rates.

        A match is followed for as long as its predictions are right. The next match is the last
        occurrence of the longest n-gram seen before.
        """
        text, rates = self._token_ids, self.acceptance
        key, expected, matched = self._key, self.next_position, self.match_length
        longest_mask = self._positions[0][0]
        for position in range(self._num_read, len(text)):
            token = text[position]
            if expected >= 0:
                # [task 5.6.3 follow]
                is_accepted = text[expected] == token
                rates.update(matched, is_accepted)
                expected, matched = (expected + 1, matched + 1) if is_accepted else (-1, 0)
                # [/task 5.6.3 follow]
            key = (key << _BITS | token) & longest_mask
            for length, (mask, positions) in zip(NGRAM_LENGTHS, self._positions, strict=True):
                if position + 1 < length:
                    continue
                # [task 5.6.3 look-up]
                if expected < 0 and key & mask in positions:
                    expected, matched = positions[key & mask], length
                positions[key & mask] = position + 1
                # [/task 5.6.3 look-up]
        self._num_read = len(text)
        self._key, self.next_position, self.match_length = key, expected, matched

    def draft_tokens(
        self, min_probability: float, max_tokens: int = MAX_NGRAM_DRAFT_TOKENS
    ) -> list[int]:
        """Returns the likely next tokens: those that followed the match.

        A draft token is accepted only if all earlier ones are, so its probability is the product of
        the rates so far. Each draft token makes the match one token longer.

        Args:
            min_probability: lower bound on the probability that a draft token is accepted.
        """
        self.update()
        if self.next_position < 0:
            return []
        drafts: list[int] = []
        text, position, match_length = self._token_ids, self.next_position, self.match_length
        probability = 1.0
        # [task 5.6.4 draft]
        while len(drafts) < max_tokens:
            probability *= self.acceptance.rate(match_length)
            if probability < min_probability:
                break
            # If ≥ 0, `position` is beyond the end of the text: continue with the draft itself.
            beyond = position - len(text)
            drafts.append(text[position] if beyond < 0 else drafts[beyond])
            position += 1
            match_length += 1
        # [/task 5.6.4 draft]
        return drafts


class NgramProposer:
    """Proposes draft tokens without a model; keeps one n-gram index per request."""

    def __init__(self, max_tokens: int = MAX_NGRAM_DRAFT_TOKENS):
        self._max_tokens = max_tokens
        self._indexes: WeakKeyDictionary[EngineRequest, NgramIndex] = WeakKeyDictionary()

    def propose(self, request: EngineRequest, num_running: int) -> Sequence[int]:
        """Returns a request's likely next tokens; empty if there is no proposal."""
        index = self._indexes.get(request)
        if index is None:
            index = self._indexes[request] = NgramIndex(request.token_ids)
        return index.draft_tokens(break_even_probability(num_running), self._max_tokens)


MAX_GRAMMAR_DRAFT_TOKENS = 16  # maximum per request and step


class GrammarProposer:
    """Drafts the tokens for which the grammar leaves no choice."""

    def propose(self, request: EngineRequest, num_running: int) -> Sequence[int]:
        """Returns at most `MAX_GRAMMAR_DRAFT_TOKENS` tokens forced by the grammar."""
        if request.grammar is None:
            return []
        # [task 5.4.4 propose]
        return forced_tokens(request.grammar.matcher)[:MAX_GRAMMAR_DRAFT_TOKENS]
        # [/task 5.4.4 propose]


def forced_tokens(matcher: Any) -> list[int]:
    """Returns the next tokens forced by a grammar, up to the first choice.

    The matcher may propose a special token whose text is forced, but which the grammar rejects.
    This token and the tokens after it are dropped.

    Args:
        matcher: an `llguidance.LLMatcher`; it is not advanced.
    """
    # [task 5.4.4 forced]
    tokens: list[int] = matcher.compute_ff_tokens()
    num_valid: int = matcher.validate_tokens(tokens) if tokens else 0
    return tokens[:num_valid]
    # [/task 5.4.4 forced]


def accepted_tokens(draft_tokens: Sequence[int], sampled: Sequence[int]) -> Sequence[int]:
    """Returns a step's tokens: accepted draft tokens, then one from the target.

    `sampled[i]` is the target's sample after the first i draft tokens, so it is valid only if those
    are accepted. The longest prefix of draft tokens equal to the samples is accepted.

    Args:
        draft_tokens: draft tokens, possibly none.
        sampled: the target's samples, one more than `draft_tokens`.
    """
    if list(draft_tokens) == list(sampled[: len(draft_tokens)]):
        return sampled  # all draft tokens are accepted, or there are none
    # [task 5.6.1 verify]
    num_accepted = 0
    while draft_tokens[num_accepted] == sampled[num_accepted]:
        num_accepted += 1
    return sampled[: num_accepted + 1]
    # [/task 5.6.1 verify]


@dataclass
class SpeculationStatistics:
    """Acceptance statistics of one generation, or of an engine since its start."""

    target_steps: int = 0  # target model calls, including prefill
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    def __str__(self) -> str:
        share = (
            f" ({self.num_accepted_tokens / self.num_draft_tokens:.0%})"
            if self.num_draft_tokens
            else ""
        )
        return (
            f"draft tokens: {self.num_accepted_tokens} of {self.num_draft_tokens} accepted{share}, "
            f"{self.target_steps} target steps"
        )
