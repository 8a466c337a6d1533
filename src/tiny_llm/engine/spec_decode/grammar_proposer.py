"""Guesses without a model: the tokens that a grammar forces.

Where a grammar leaves one way to go on (`{"name": "` is followed by a tool's name), the next tokens
are known. They are offered as guesses, so the model computes them in one step and confirms them.
They cost no step of their own and change no token.
"""

from collections.abc import Sequence
from typing import Protocol

from ..scheduling.request import EngineRequest

MAX_GRAMMAR_DRAFT_TOKENS = 16  # tokens that one step computes on top of the next one


class DraftProposer(Protocol):
    """Where guesses come from that cost no model."""

    def propose(self, request: EngineRequest, num_running: int) -> Sequence[int]:
        """The tokens that will likely come next in an answer; none if there is no telling.

        Args:
            request: the answer's.
            num_running: how many requests share its steps.
        """


class GrammarProposer:
    """A source of guesses: see the module."""

    def propose(self, request: EngineRequest, num_running: int) -> Sequence[int]:
        """See `DraftProposer`; forced tokens are certain, however many requests there are."""
        if request.grammar is None:
            return []
        tokens: list[int] = request.grammar.fast_forward_tokens()[:MAX_GRAMMAR_DRAFT_TOKENS]
        return tokens
