"""Training and evaluation examples: a chat and its answer's reasoning."""

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
    """A chat that ends with the answer to learn, and the reasoning before it.

    Attributes:
        kind: question type, for the evaluation tables.
        enable_thinking: whether the answer includes the reasoning.
        is_closed: whether earlier assistant turns also start with an empty reasoning block, like
            the last turn. The loss then covers their first token, which decides between a tool call
            and text.
        answer_parts: the answer as (text, whether the loss covers it); the excluded parts are
            text that a grammar would force. If empty, the loss covers the complete answer.
    """

    kind: str
    messages: tuple[Message, ...]
    thought: str
    enable_thinking: bool = False
    is_closed: bool = False
    answer_parts: tuple[tuple[str, bool], ...] = ()

    @property
    def prompt(self) -> list[Message]:
        """The messages before the answer."""
        return list(self.messages[:-1])

    @property
    def answer(self) -> str:
        """The expected answer, without the reasoning."""
        return self.messages[-1]["content"]


def chat(kind: str, thought: str, *turns: str) -> Example:
    """Makes an example from alternating user and assistant turns."""
    roles = ("user", "assistant")
    messages = tuple({"role": roles[i % 2], "content": text} for i, text in enumerate(turns))
    return Example(kind, messages, thought)


def add_chat_options(example: Example, rng: random.Random, thinking_share: float) -> Example:
    """Samples the thinking mode, and occasionally prepends a system message."""
    example = replace(example, enable_thinking=rng.random() < thinking_share)
    if rng.random() < 0.15:
        system = rng.choice(SYSTEM_MESSAGES)
        first, *rest = example.messages
        if first["role"] == "system":  # the tool list follows the sampled message
            system, first, *rest = f"{system}\n\n{first['content']}", *rest
        messages = ({"role": "system", "content": system}, first, *rest)
        example = replace(example, messages=messages)
    return example
