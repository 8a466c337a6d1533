"""How many tokens a request had, and which program computed them, as each protocol tells it."""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from .answer import Answer
from .bridge import Generation

FINGERPRINT = f"tiny-llm-{version('tiny-llm')}"  # what computed it, as OpenAI's clients read it


def usage_of(generation: Generation, answers: Iterable[Answer]) -> dict[str, Any]:
    """OpenAI's `usage`, of chats and completions."""
    listed = list(answers)
    tokens = sum(answer.tokens for answer in listed)
    return {
        "prompt_tokens": generation.prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": generation.prompt_tokens + tokens,
        "prompt_tokens_details": {"cached_tokens": generation.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": sum(answer.thinking_tokens for answer in listed)
        },
    }
