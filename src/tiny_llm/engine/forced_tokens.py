"""Guesses without a model: the tokens that a grammar forces.

Where a grammar leaves one way to go on (`{"name": "` is followed by a tool's name), the next tokens
are known. They are offered as guesses, so the model computes them in one step and confirms them.
They cost no step of their own and change no token.
"""

from collections.abc import Sequence
from typing import Protocol

from .request import EngineRequest

MAX_OFFERED = 16  # tokens that one step computes on top of the next one


class GuessSource(Protocol):
    """Where guesses come from that cost no model."""

    def propose(self, request: EngineRequest, num_running: int) -> Sequence[int]:
        """The tokens that will likely come next in an answer; none if there is no telling.

        Args:
            request: the answer's.
            num_running: how many requests share its steps.
        """


class ForcedTokens:
    """A source of guesses: see the module."""

    def propose(self, request: EngineRequest, num_running: int) -> Sequence[int]:
        """See `GuessSource`; forced tokens are certain, however many requests there are."""
        if request.grammar is None:
            return []
        tokens: list[int] = request.grammar.forced_tokens()[:MAX_OFFERED]
        return tokens
