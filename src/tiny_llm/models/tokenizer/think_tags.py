"""Tags around a model's reasoning."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ThinkTags:
    token: str  # special token before the reasoning
    end: str  # special token after the reasoning
    label: str = ""  # text after `token` that is not reasoning

    @property
    def start(self) -> str:
        return self.token + self.label


DEFAULT_TAGS = ThinkTags("<think>", "</think>")
GEMMA4_TAGS = ThinkTags("<|channel>", "<channel|>", "thought")


def think_tags(tokenizer: Any) -> ThinkTags:
    """Tags in the tokenizer's chat template."""
    template = str(getattr(tokenizer, "chat_template", None))
    return GEMMA4_TAGS if GEMMA4_TAGS.start in template else DEFAULT_TAGS
