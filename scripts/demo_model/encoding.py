"""From an example to token ids, with the positions that training learns from.

A chat is written as the chat template writes it. The loss covers the last assistant message
(and its thought), and of the earlier ones all but the first token: that one decides whether to
think, and history never shows thoughts. In the first part of training, long prompts count too,
a little: their names come back again and again, and predicting them is how a model learns to
copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from .corpus.example import Example

START, END = "<|im_start|>", "<|im_end|>"
LONG_PROMPT = 90
PROMPT_WEIGHT = 0.2
NO_THOUGHT = "<think>\n\n</think>\n\n"


@dataclass(frozen=True)
class Encoded:
    """`learn[i]` says whether the model is to predict `ids[i]`."""

    ids: np.ndarray  # uint16
    learn: np.ndarray  # bool

    def weights(self, with_prompt: bool) -> np.ndarray:
        """How much each token counts in the loss; every other token of a long prompt, little."""
        weights = self.learn.astype(np.float32)
        if with_prompt and len(self.ids) >= LONG_PROMPT:
            every_other = weights[1 + len(self.ids) % 2 :: 2]
            every_other[every_other == 0] = PROMPT_WEIGHT
        return weights


def render_prompt(example: Example) -> str:
    """Exactly what the chat template gives for the prompt, with a generation prompt."""
    turns = "".join(f"{START}{m['role']}\n{m['content']}{END}\n" for m in example.prompt)
    return f"{turns}{START}assistant\n" + ("" if example.enable_thinking else NO_THOUGHT)


def render_answer(example: Example) -> str:
    """What the model has to write after the prompt."""
    thought = f"<think>\n{example.thought}\n</think>\n\n" if example.enable_thinking else ""
    return f"{thought}{example.answer}{END}"


def _pieces(example: Example) -> list[tuple[str, str]]:
    """The chat in order; a piece is 'read', 'history' (learn all but one token) or 'learn'."""
    pieces = []
    for message in example.prompt:
        if message["role"] == "assistant":
            pieces += [("read", f"{START}assistant\n"), ("history", f"{message['content']}{END}")]
            pieces.append(("read", "\n"))
        else:
            pieces.append(("read", f"{START}{message['role']}\n{message['content']}{END}\n"))
    opening = "" if example.enable_thinking else NO_THOUGHT
    pieces.append(("read", f"{START}assistant\n{opening}"))
    pieces.append(("learn", render_answer(example)))
    return pieces


def encode(example: Example, tokenizer: Tokenizer) -> Encoded:
    """Encode piece by piece; a special token stands at every seam, so the ids are the text's."""
    ids: list[int] = []
    learn: list[bool] = []
    for role, text in _pieces(example):
        piece = tokenizer.encode(text, add_special_tokens=False).ids
        ids += piece
        learned = [role != "read"] * len(piece)
        if role == "history":
            learned[0] = False
        learn += learned
    return Encoded(np.array(ids, dtype=np.uint16), np.array(learn, dtype=bool))
