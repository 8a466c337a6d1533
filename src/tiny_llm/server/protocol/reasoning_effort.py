"""Levels of effort: how many tokens a model may think before it answers.

The models that run here think, or do not; they know no levels. A level is therefore a bound on the
thoughts, which must leave half of an answer's tokens to the answer itself.
"""

from typing import Literal

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

# Tokens of thoughts; levels that are not here set no bound, and with "none" nothing is thought.
THINKING_BUDGETS = {"minimal": 128, "low": 512, "medium": 2048}
UNLIMITED = -1  # a budget that says so, as in vLLM


def thinking_budget(
    tokens: int | None, effort: ReasoningEffort | None, max_tokens: int | None
) -> int | None:
    """How many tokens the thoughts may have; None for no bound.

    Args:
        tokens: the budget that a request names, which wins; None if it names none.
        effort: the level that it names.
        max_tokens: of the whole answer.
    """
    if tokens is not None:
        return None if tokens == UNLIMITED else tokens
    budget = THINKING_BUDGETS.get(effort or "")
    if budget is None or max_tokens is None:
        return budget
    return min(budget, max_tokens // 2)
