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

from .request import EngineRequest

LENGTHS = (4, 2)  # of what is looked up, the longest first
MOST_GUESSES = 7  # with the token before them eight rows, which kernels multiply together
LONG = 8  # tokens that agree: longer agreements are no surer
MEMORY = 8  # how many tokens an estimate remembers
TOKENS_IN_A_STEP = 8  # that a step for one sequence has time for while it waits for memory

_BITS = 20  # of a token in a key


class Repetition:
    """Where a growing text repeats itself.

    Args:
        token_ids: the text; the list grows, and is read when guesses are asked for.
    """

    def __init__(self, token_ids: Sequence[int]):
        self._token_ids = token_ids
        self._num_read = 0
        self._key = 0  # the last tokens, LENGTHS[0] of them
        # By length: the last tokens of that number -> the place after them.
        self._places: list[tuple[int, dict[int, int]]] = [
            ((1 << _BITS * length) - 1, {}) for length in LENGTHS
        ]
        self._next = -1  # the place of the token that should come next; −1 if there is none
        self._agreed = 0  # how many tokens before that place are the text's last ones
        # By how many agreed: how often the next token did, too.
        self._trust = [0.0] + [1 - 1 / length for length in range(1, LONG + 1)]

    def guesses(self, least_likely: float, most: int = MOST_GUESSES) -> list[int]:
        """The tokens that are likely to come next.

        Args:
            least_likely: the probability below which a guess is not worth its time.
            most: how many guesses may be made.
        """
        self._read()
        if self._next < 0:
            return []
        found: list[int] = []
        likely, agreed, text, place = 1.0, self._agreed, self._token_ids, self._next
        while len(found) < most:
            likely *= self._trust[min(agreed, LONG)]
            if likely < least_likely:
                break
            beyond = place - len(text)  # a text that repeats its last tokens goes on with guesses
            found.append(text[place] if beyond < 0 else found[beyond])
            place += 1
            agreed += 1
        return found

    def _read(self) -> None:
        """Takes in the tokens that are new."""
        text, trust, places = self._token_ids, self._trust, self._places
        key, expected, agreed = self._key, self._next, self._agreed
        most = places[0][0]
        for place in range(self._num_read, len(text)):
            token = text[place]
            if expected >= 0:
                is_right = text[expected] == token
                kind = agreed if agreed < LONG else LONG
                trust[kind] += (is_right - trust[kind]) / MEMORY
                expected, agreed = (expected + 1, agreed + 1) if is_right else (-1, 0)
            key = (key << _BITS | token) & most
            for length, (mask, found) in zip(LENGTHS, places, strict=True):
                if place + 1 < length:
                    continue
                if expected < 0 and (key & mask) in found:
                    expected, agreed = found[key & mask], length
                found[key & mask] = place + 1
        self._num_read = len(text)
        self._key, self._next, self._agreed = key, expected, agreed


class RepeatedText:
    """A source of guesses for all requests: the repetitions of each.

    Args:
        most: how many guesses a step verifies for a request.
    """

    def __init__(self, most: int = MOST_GUESSES):
        self._most = most
        self._of: WeakKeyDictionary[EngineRequest, Repetition] = WeakKeyDictionary()

    def propose(self, request: EngineRequest, num_running: int) -> Sequence[int]:
        """The tokens that are likely to come next; see `GuessSource`."""
        own = self._of.get(request)
        if own is None:
            own = self._of[request] = Repetition(request.token_ids)
        return own.guesses(num_running / (num_running + TOKENS_IN_A_STEP), self._most)
