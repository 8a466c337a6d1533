"""Tags around a model's reasoning."""

from typing import Any

# (start, end). A start is a special token, and in Gemma 4 a label after it.
DEFAULT_TAGS = ("<think>", "</think>")
GEMMA4_TAGS = ("<|channel>thought", "<channel|>")


def think_tags(tokenizer: Any) -> tuple[str, str]:
    """Tags in the tokenizer's chat template, `<think>` and `</think>` by default."""
    template = str(getattr(tokenizer, "chat_template", None))
    return GEMMA4_TAGS if GEMMA4_TAGS[0] in template else DEFAULT_TAGS
