"""Guesses without a model: the tokens that a grammar forces.

Where a grammar leaves one way to go on (`{"name": "` is followed by a tool's name), the next tokens
are known. They are offered as guesses, so the model computes them in one step and confirms them.
They cost no step of their own and change no token.
"""

from .request import EngineRequest

MAX_OFFERED = 16  # tokens that one step computes on top of the next one


class ForcedTokens:
    """A source of guesses, which needs no model."""

    def propose(self, request: EngineRequest) -> list[int]:
        """The tokens that will likely come next in an answer; none if there is no telling."""
        if request.grammar is None:
            return []
        tokens: list[int] = request.grammar.forced_tokens()[:MAX_OFFERED]
        return tokens
