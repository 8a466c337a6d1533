"""Tags around a model's reasoning."""

from typing import Any

# (start, end). Gemma 4's start tag is a special token and a label.
DEFAULT_TAGS = ("<think>", "</think>")
GEMMA4_TAGS = ("<|channel>thought", "<channel|>")


def think_tags(tokenizer: Any) -> tuple[str, str]:
    """Tags in the tokenizer's chat template, `<think>` and `</think>` by default."""
    template = str(getattr(tokenizer, "chat_template", None))
    return GEMMA4_TAGS if GEMMA4_TAGS[0] in template else DEFAULT_TAGS
