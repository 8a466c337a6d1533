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
    """A chat whose last message is the answer to learn, with the thought that leads to it."""

    kind: str
    messages: tuple[Message, ...]
    thought: str
    enable_thinking: bool = False

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


def dress(example: Example, rng: random.Random, thinking_share: float) -> Example:
    """Choose the thinking mode and, now and then, put a system message first."""
    example = replace(example, enable_thinking=rng.random() < thinking_share)
    if rng.random() < 0.15:
        system = {"role": "system", "content": rng.choice(SYSTEM_MESSAGES)}
        example = replace(example, messages=(system, *example.messages))
    return example
