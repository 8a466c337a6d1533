"""Token usage and system fingerprint."""

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from ..engine_client.client import RequestHandle
from .output_parser import ParsedOutput

SYSTEM_FINGERPRINT = f"tiny-llm-{version('tiny-llm')}"  # OpenAI's field


def openai_usage(handle: RequestHandle, outputs: Iterable[ParsedOutput]) -> dict[str, Any]:
    """Returns OpenAI's `usage` object for chat and text completions."""
    listed = list(outputs)
    tokens = sum(output.tokens for output in listed)
    return {
        "prompt_tokens": handle.prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": handle.prompt_tokens + tokens,
        "prompt_tokens_details": {"cached_tokens": handle.cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": sum(output.reasoning_tokens for output in listed)
        },
    }
