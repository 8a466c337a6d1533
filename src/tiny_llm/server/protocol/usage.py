"""How many tokens a request had, and which program computed them, as each protocol tells it."""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from ..engine_client.client import RequestHandle
from .output import ParsedOutput

SYSTEM_FINGERPRINT = (
    f"tiny-llm-{version('tiny-llm')}"  # what computed it, as OpenAI's clients read it
)


def openai_usage(handle: RequestHandle, answers: Iterable[ParsedOutput]) -> dict[str, Any]:
    """OpenAI's `usage`, of chats and completions."""
    listed = list(answers)
    tokens = sum(answer.tokens for answer in listed)
    return {
        "prompt_tokens": handle.prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": handle.prompt_tokens + tokens,
        "prompt_tokens_details": {"cached_tokens": handle.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": sum(answer.reasoning_tokens for answer in listed)
        },
    }
