"""Encodes examples to token ids with a loss mask.

Chats are rendered in the chat template's format. The loss covers the last assistant message,
including its reasoning, and earlier ones except their first token: it decides whether the model
reasons, and messages in a chat's history have no reasoning. In the first part of training, every
second token of long prompts has a small weight in the loss: names recur in these prompts, and
predicting them teaches the model to copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from .corpus.example import Example

START, END = "<|im_start|>", "<|im_end|>"
LONG_PROMPT = 90  # minimum length of a long example, prompt and answer, in tokens
PROMPT_WEIGHT = 0.2  # loss weight of prompt tokens; training targets have weight 1
EMPTY_THINKING = "<think>\n\n</think>\n\n"


@dataclass(frozen=True)
class Encoded:
    """Token ids with their loss mask."""

    ids: np.ndarray  # uint16
    loss_mask: np.ndarray  # bool: whether `ids[i]` is a training target

    def weights(self, with_prompt: bool) -> np.ndarray:
        """Loss weight of each token: 1 for targets, otherwise 0 or `PROMPT_WEIGHT`.

        With `with_prompt`, every second prompt token of a long example has `PROMPT_WEIGHT`.
        """
        weights = self.loss_mask.astype(np.float32)
        if with_prompt and len(self.ids) >= LONG_PROMPT:
            every_other = weights[1 + len(self.ids) % 2 :: 2]
            every_other[every_other == 0] = PROMPT_WEIGHT
        return weights


def render_prompt(example: Example) -> str:
    """Renders the prompt as the chat template does, up to the start of the answer."""
    turns = "".join(f"{START}{m['role']}\n{m['content']}{END}\n" for m in example.prompt)
    return f"{turns}{START}assistant\n" + ("" if example.enable_thinking else EMPTY_THINKING)


def render_answer(example: Example) -> list[tuple[str, str]]:
    """Renders the expected output as segments; see `_segments`."""
    thought = f"<think>\n{example.thought}\n</think>\n\n" if example.enable_thinking else ""
    if not example.answer_parts:
        return [("learn", f"{thought}{example.answer}{END}")]
    segments = [("learn" if learnt else "read", text) for text, learnt in example.answer_parts]
    if thought:
        segments.insert(0, ("learn", thought))
    return [*segments, ("learn", END)]


def _segments(example: Example) -> list[tuple[str, str]]:
    """Splits the chat into (role, text) segments.

    Roles: the loss covers "learn", excludes "read", and covers "history" except its first token.
    """
    segments = []
    is_closed = example.is_closed and not example.enable_thinking
    for message in example.prompt:
        if message["role"] == "assistant" and is_closed:
            segments.append(("read", f"{START}assistant\n{EMPTY_THINKING}"))
            segments += [("learn", f"{message['content']}{END}"), ("read", "\n")]
        elif message["role"] == "assistant":
            segments += [("read", f"{START}assistant\n"), ("history", f"{message['content']}{END}")]
            segments.append(("read", "\n"))
        else:
            segments.append(("read", f"{START}{message['role']}\n{message['content']}{END}\n"))
    opening = "" if example.enable_thinking else EMPTY_THINKING
    segments.append(("read", f"{START}assistant\n{opening}"))
    return segments + render_answer(example)


def encode(example: Example, tokenizer: Tokenizer) -> Encoded:
    """Encodes an example segment by segment.

    The ids equal those of the complete text, because segments are split at special tokens or,
    within an output, at pre-tokenizer boundaries.
    """
    ids: list[int] = []
    loss_mask: list[bool] = []
    for role, text in _segments(example):
        segment_ids = tokenizer.encode(text, add_special_tokens=False).ids
        ids += segment_ids
        learned = [role != "read"] * len(segment_ids)
        if role == "history":
            learned[0] = False
        loss_mask += learned
    return Encoded(np.array(ids, dtype=np.uint16), np.array(loss_mask, dtype=bool))
