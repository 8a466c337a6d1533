"""GrammarProposer: draft tokens forced by the grammar.

Where a grammar allows only one continuation (after `{"name": "`, the rest of a tool's name), the
next tokens are known, and a single step verifies them as draft tokens. This saves decoding steps
without changing the output.
"""

from collections.abc import Sequence
from typing import Any

from ..scheduling.request import EngineRequest

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
