"""GrammarProposer: draft tokens that the grammar forces.

Where a grammar allows only one continuation (after `{"name": "`, the rest of a tool's name), the
next tokens are known. As draft tokens they are verified in a single step. They save decoding steps
and change no output.
"""

from collections.abc import Sequence

from ..scheduling.request import EngineRequest

MAX_GRAMMAR_DRAFT_TOKENS = 16  # per request and step


class GrammarProposer:
    """A `DraftProposer` for structured outputs."""

    def propose(self, request: EngineRequest, num_running: int) -> Sequence[int]:
        """See `DraftProposer`. Forced tokens are certain, so the load does not matter."""
        if request.grammar is None:
            return []
        tokens: list[int] = request.grammar.fast_forward_tokens()[:MAX_GRAMMAR_DRAFT_TOKENS]
        return tokens
