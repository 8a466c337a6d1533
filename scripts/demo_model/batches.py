"""Training batches of a fixed number of tokens, grouped by padded length.

Each example is right-padded to a multiple of 8, 16 or 64 tokens; examples of equal padded length
form a group (see `model.py`). Causal attention never sees the padding.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .corpus.mixture import training_examples
from .encoding import Encoded, encode

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from .model import Group

MAX_LENGTH = 1536  # tokens; longer examples are skipped


@dataclass(frozen=True)
class Batch:
    """A training batch: flat tensors of T tokens, and loss weights at `target_positions`."""

    ids: Tensor  # T
    positions: Tensor  # T
    groups: list[Group]
    target_positions: Tensor  # indices of tokens with loss
    labels: Tensor  # next token at each target position
    weights: Tensor  # loss weight of each target position
    num_examples: int
    num_tokens: int  # excluding padding

    def to(self, device: str) -> Batch:
        """Copies the tensors to a GPU without waiting for its pending kernels."""
        if device == "cpu":
            return self
        tensors = {
            name: value.pin_memory().to(device, non_blocking=True)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **tensors)


def padded_length(length: int) -> int:
    """Number of tokens of an example after padding."""
    step = 8 if length <= 128 else 16 if length <= 256 else 64
    return -(-length // step) * step


def assemble(examples: list[Encoded], num_tokens: int, with_prompt: bool) -> Batch:
    """Concatenates the examples, grouped by padded length, and pads the result to `num_tokens`.

    With `with_prompt`, the loss includes the prompts' tokens.
    """
    by_length: dict[int, list[Encoded]] = defaultdict(list)
    for example in examples:
        by_length[padded_length(len(example.ids))].append(example)
    ids = np.zeros(num_tokens, dtype=np.int64)
    positions = np.zeros(num_tokens, dtype=np.int64)
    weights = np.zeros(num_tokens + 1, dtype=np.float32)  # loss weight per token
    groups, start = [], 0
    for length, rows in sorted(by_length.items()):
        for example in rows:
            size = len(example.ids)
            ids[start : start + size] = example.ids
            positions[start : start + length] = np.arange(length)
            weights[start : start + size] = example.weights(with_prompt)
            start += length
        groups.append((len(rows), length))
    if start < num_tokens:
        groups.append((num_tokens - start, 1))
    where = np.flatnonzero(weights[1:])
    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(positions),
        groups,
        torch.from_numpy(where),
        torch.from_numpy(ids[where + 1]),
        torch.from_numpy(weights[where + 1]),
        len(examples),
        sum(len(example.ids) for example in examples),
    )


class TrainingBatches:
    """Infinite source of training batches."""

    def __init__(
        self, tokenizer: Tokenizer, seed: int, num_tokens: int, is_continued: bool
    ) -> None:
        self.tokenizer = tokenizer
        self.examples = training_examples(seed, is_continued)
        self.num_tokens = num_tokens
        self.pending: list[Encoded] = []

    def take(self, with_prompt: bool) -> Batch:
        """Builds the next batch; an example that does not fit begins the following batch."""
        used = sum(padded_length(len(encoded.ids)) for encoded in self.pending)
        while True:
            encoded = encode(next(self.examples), self.tokenizer)
            length = padded_length(len(encoded.ids))
            if length > MAX_LENGTH:
                continue
            if used + length > self.num_tokens:
                batch = assemble(self.pending, self.num_tokens, with_prompt)
                self.pending = [encoded]
                return batch
            self.pending.append(encoded)
            used += length
