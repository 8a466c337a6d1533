"""NgramProposer: draft tokens from earlier occurrences of an n-gram.

Outputs repeat earlier text: edited code, extracted fields and names in a summary come from the
prompt, and list items share a format. The last n-gram is therefore looked up among all earlier
tokens, and its continuation there becomes the draft, at the cost of a dictionary lookup:

    … the capital of France is Paris. Q: What is the capital of France? A: The capital of
                ^^^^^^^^^^^^^^^^^^^^                              last tokens     ^^^^^^^^^^
                 draft tokens

How many draft tokens pay off depends on their acceptance rate and on the load: a step for one
sequence is bound by memory bandwidth, so a few more tokens are nearly free; a large batch is not.
The acceptance rate is estimated by match length, from every token of prompt and output, drafted or
not. Text without repetitions therefore costs nothing.

Source: Saxena, "Prompt lookup decoding" (2023), https://github.com/apoorvumang/prompt-lookup-decoding
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from ..scheduling.request import EngineRequest

NGRAM_LENGTHS = (4, 2)  # lookup keys, longest first
MAX_NGRAM_DRAFT_TOKENS = 7  # plus the sampled token: eight rows, one tile of the kernels
MAX_MATCH_LENGTH = 8  # longer matches are not accepted more often
ESTIMATE_WINDOW = 8  # tokens in an acceptance estimate's moving average
FREE_TOKENS_PER_STEP = 8  # extra tokens that fit a bandwidth-bound step of one sequence

_BITS = 20  # of a token in a key


class NgramIndex:
    """Incremental n-gram index over a growing token list.

    Args:
        token_ids: the text, a list that grows; new tokens are indexed on demand.
    """

    def __init__(self, token_ids: Sequence[int]):
        self._token_ids = token_ids
        self._num_read = 0
        self._key = 0  # the last `NGRAM_LENGTHS[0]` tokens
        # By n-gram length: (mask of the key, position after the last occurrence by key).
        self._positions: list[tuple[int, dict[int, int]]] = [
            ((1 << _BITS * length) - 1, {}) for length in NGRAM_LENGTHS
        ]
        self._next_position = -1  # position of the predicted next token; −1 without a match
        self._match_length = 0  # tokens before that position that match the end of the text
        # By match length: acceptance rate of the next token.
        self._acceptance = [0.0] + [1 - 1 / length for length in range(1, MAX_MATCH_LENGTH + 1)]

    def draft_tokens(
        self, min_probability: float, max_tokens: int = MAX_NGRAM_DRAFT_TOKENS
    ) -> list[int]:
        """Returns the likely next tokens.

        Args:
            min_probability: lower bound on the probability that a draft token is accepted.
            max_tokens: upper bound on the number of draft tokens.
        """
        self._update()
        if self._next_position < 0:
            return []
        drafts: list[int] = []
        text, position, match_length = self._token_ids, self._next_position, self._match_length
        probability = 1.0
        while len(drafts) < max_tokens:
            probability *= self._acceptance[min(match_length, MAX_MATCH_LENGTH)]
            if probability < min_probability:
                break
            beyond = position - len(text)  # ≥ 0: the match has reached the draft itself
            drafts.append(text[position] if beyond < 0 else drafts[beyond])
            position += 1
            match_length += 1
        return drafts

    def _update(self) -> None:
        """Indexes the new tokens and updates the acceptance estimates."""
        text, acceptance = self._token_ids, self._acceptance
        key, expected, matched = self._key, self._next_position, self._match_length
        longest_mask = self._positions[0][0]
        for position in range(self._num_read, len(text)):
            token = text[position]
            if expected >= 0:
                is_accepted = text[expected] == token
                length = matched if matched < MAX_MATCH_LENGTH else MAX_MATCH_LENGTH
                acceptance[length] += (is_accepted - acceptance[length]) / ESTIMATE_WINDOW
                expected, matched = (expected + 1, matched + 1) if is_accepted else (-1, 0)
            key = (key << _BITS | token) & longest_mask
            for length, (mask, positions) in zip(NGRAM_LENGTHS, self._positions, strict=True):
                if position + 1 < length:
                    continue
                if expected < 0 and (key & mask) in positions:
                    expected, matched = positions[key & mask], length
                positions[key & mask] = position + 1
        self._num_read = len(text)
        self._key, self._next_position, self._match_length = key, expected, matched


class NgramProposer:
    """A `DraftProposer` that keeps an n-gram index per request.

    Args:
        max_tokens: upper bound on draft tokens per request and step.
    """

    def __init__(self, max_tokens: int = MAX_NGRAM_DRAFT_TOKENS):
        self._max_tokens = max_tokens
        self._indexes: WeakKeyDictionary[EngineRequest, NgramIndex] = WeakKeyDictionary()

    def propose(self, request: EngineRequest, num_running: int) -> Sequence[int]:
        """See `DraftProposer`."""
        index = self._indexes.get(request)
        if index is None:
            index = self._indexes[request] = NgramIndex(request.token_ids)
        min_probability = num_running / (num_running + FREE_TOKENS_PER_STEP)
        return index.draft_tokens(min_probability, self._max_tokens)
