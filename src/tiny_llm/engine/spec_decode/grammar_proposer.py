"""GrammarProposer: draft tokens that the grammar forces.

Where a grammar allows only one continuation (after `{"name": "`, the rest of a tool's name), the
next tokens are known and verified as draft tokens in a single step. This saves decoding steps
without changing the output.
"""

from collections.abc import Sequence

from ..scheduling.request import EngineRequest

MAX_GRAMMAR_DRAFT_TOKENS = 16  # per request and step


class GrammarProposer:
    """A `DraftProposer` for structured outputs."""

    def propose(self, request: EngineRequest, num_running: int) -> Sequence[int]:
        """See `DraftProposer`. Forced tokens are always accepted, so the load is irrelevant."""
        if request.grammar is None:
            return []
        tokens: list[int] = request.grammar.fast_forward_tokens()[:MAX_GRAMMAR_DRAFT_TOKENS]
        return tokens
