"""Guesses from the text itself: what followed the same tokens the last time they came.

Answers quote. Code that is edited, fields that are extracted and names in a summary stand in the
prompt already, and lists repeat their own form. So the last tokens are looked up among all before
them, and what followed there is offered as a guess, at the price of a dictionary:

    … the capital of France is Paris. Q: What is the capital of France? A: The capital of
                ^^^^^^^^^^^^^^^^^^^^                              the last tokens ^^^^^^^^^^
                 guesses

How many guesses are worth their time depends on how likely they are, and on the other requests: a
step for one sequence waits for memory, and a few more tokens cost little; a step for many does not.
How likely they are is counted, by how many tokens agreed so far, on every token of the prompt and
the answer, whether it was offered as a guess or not: so a text that repeats nothing costs nothing.

Source: Saxena, "Prompt lookup decoding" (2023), https://github.com/apoorvumang/prompt-lookup-decoding
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from ..scheduling.request import EngineRequest

NGRAM_LENGTHS = (4, 2)  # of what is looked up, the longest first
MAX_NGRAM_DRAFT_TOKENS = 7  # with the token before them eight rows, which kernels multiply together
MAX_MATCH_LENGTH = 8  # tokens that agree: longer agreements are no surer
ESTIMATE_WINDOW = 8  # how many tokens an estimate remembers
FREE_TOKENS_PER_STEP = 8  # that a step for one sequence has time for while it waits for memory

_BITS = 20  # of a token in a key


class NgramIndex:
    """Where a growing text repeats itself.

    Args:
        token_ids: the text; the list grows, and is read when guesses are asked for.
    """

    def __init__(self, token_ids: Sequence[int]):
        self._token_ids = token_ids
        self._num_read = 0
        self._key = 0  # the last tokens, LENGTHS[0] of them
        # By length: the last tokens of that number -> the place after them.
        self._positions: list[tuple[int, dict[int, int]]] = [
            ((1 << _BITS * length) - 1, {}) for length in NGRAM_LENGTHS
        ]
        self._next_position = (
            -1
        )  # the place of the token that should come next; −1 if there is none
        self._match_length = 0  # how many tokens before that place are the text's last ones
        # By how many agreed: how often the next token did, too.
        self._acceptance = [0.0] + [1 - 1 / length for length in range(1, MAX_MATCH_LENGTH + 1)]

    def draft_tokens(
        self, min_probability: float, max_tokens: int = MAX_NGRAM_DRAFT_TOKENS
    ) -> list[int]:
        """The tokens that are likely to come next.

        Args:
            min_probability: the probability below which a guess is not worth its time.
            max_tokens: how many draft tokens may be made.
        """
        self._update()
        if self._next_position < 0:
            return []
        found: list[int] = []
        likely, agreed, text, place = 1.0, self._match_length, self._token_ids, self._next_position
        while len(found) < max_tokens:
            likely *= self._acceptance[min(agreed, MAX_MATCH_LENGTH)]
            if likely < min_probability:
                break
            beyond = place - len(text)  # a text that repeats its last tokens goes on with guesses
            found.append(text[place] if beyond < 0 else found[beyond])
            place += 1
            agreed += 1
        return found

    def _update(self) -> None:
        """Takes in the tokens that are new."""
        text, trust, places = self._token_ids, self._acceptance, self._positions
        key, expected, agreed = self._key, self._next_position, self._match_length
        most = places[0][0]
        for place in range(self._num_read, len(text)):
            token = text[place]
            if expected >= 0:
                is_right = text[expected] == token
                kind = agreed if agreed < MAX_MATCH_LENGTH else MAX_MATCH_LENGTH
                trust[kind] += (is_right - trust[kind]) / ESTIMATE_WINDOW
                expected, agreed = (expected + 1, agreed + 1) if is_right else (-1, 0)
            key = (key << _BITS | token) & most
            for length, (mask, found) in zip(NGRAM_LENGTHS, places, strict=True):
                if place + 1 < length:
                    continue
                if expected < 0 and (key & mask) in found:
                    expected, agreed = found[key & mask], length
                found[key & mask] = place + 1
        self._num_read = len(text)
        self._key, self._next_position, self._match_length = key, expected, agreed


class NgramProposer:
    """A source of guesses for all requests: the repetitions of each.

    Args:
        max_tokens: how many draft tokens a step verifies for a request.
    """

    def __init__(self, max_tokens: int = MAX_NGRAM_DRAFT_TOKENS):
        self._max_tokens = max_tokens
        self._indexes: WeakKeyDictionary[EngineRequest, NgramIndex] = WeakKeyDictionary()

    def propose(self, request: EngineRequest, num_running: int) -> Sequence[int]:
        """The tokens that are likely to come next; see `DraftProposer`."""
        own = self._indexes.get(request)
        if own is None:
            own = self._indexes[request] = NgramIndex(request.token_ids)
        return own.draft_tokens(
            num_running / (num_running + FREE_TOKENS_PER_STEP), self._max_tokens
        )
