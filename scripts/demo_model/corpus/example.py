"""What one training or test example is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

Message = dict[str, str]

SYSTEM_MESSAGES = (
    "You are a helpful assistant.",
    "Answer briefly.",
    "You are a small and friendly assistant.",
    "Give short and correct answers.",
    "You are the tiny-llm demo model.",
)


@dataclass(frozen=True)
class Example:
    """A chat whose last message is the answer to learn, with the thought that leads to it.

    `is_closed` writes closed thoughts into the earlier turns of the assistant as well, as if each
    were the last one. So their first token is learnt, which decides between a tool call and text.

    `answer_parts`, if there are any, are the answer in parts, and whether each is learnt: a part
    that is not stands for what a grammar forces.
    """

    kind: str
    messages: tuple[Message, ...]
    thought: str
    enable_thinking: bool = False
    is_closed: bool = False
    answer_parts: tuple[tuple[str, bool], ...] = ()

    @property
    def prompt(self) -> list[Message]:
        """Everything before the answer."""
        return list(self.messages[:-1])

    @property
    def answer(self) -> str:
        """The one right answer, without the thought."""
        return self.messages[-1]["content"]


def chat(kind: str, thought: str, *turns: str) -> Example:
    """An example from its turns: user, assistant, user, assistant."""
    roles = ("user", "assistant")
    messages = tuple({"role": roles[i % 2], "content": text} for i, text in enumerate(turns))
    return Example(kind, messages, thought)


def add_chat_options(example: Example, rng: random.Random, thinking_share: float) -> Example:
    """Choose the thinking mode and, now and then, put a system message first."""
    example = replace(example, enable_thinking=rng.random() < thinking_share)
    if rng.random() < 0.15:
        system = rng.choice(SYSTEM_MESSAGES)
        first, *rest = example.messages
        if first["role"] == "system":  # a list of tools follows the caller's message
            system, first, *rest = f"{system}\n\n{first['content']}", *rest
        messages = ({"role": "system", "content": system}, first, *rest)
        example = replace(example, messages=messages)
    return example
