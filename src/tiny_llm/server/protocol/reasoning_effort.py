"""Reasoning effort levels as thinking budgets.

The supported models can only turn thinking on or off, so a level maps to a budget of reasoning
tokens. The budget is at most half of `max_tokens`, which leaves room for the content.
"""

from typing import Literal

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

# Budgets in tokens; higher levels are unlimited, and "none" turns thinking off.
THINKING_BUDGETS = {"minimal": 128, "low": 512, "medium": 2048}
UNLIMITED = -1  # as in vLLM


def thinking_budget(
    tokens: int | None, effort: ReasoningEffort | None, max_tokens: int | None
) -> int | None:
    """Returns the maximum number of reasoning tokens; None for no limit.

    Args:
        tokens: the request's explicit budget, which takes precedence; None if not given.
        effort: the request's effort level; None if not given.
        max_tokens: maximum tokens in the completion, including reasoning.
    """
    if tokens is not None:
        return None if tokens == UNLIMITED else tokens
    budget = THINKING_BUDGETS.get(effort or "")
    if budget is None or max_tokens is None:
        return budget
    return min(budget, max_tokens // 2)
