"""Training batches of packed rows, made by worker processes.

A row of L tokens holds whole examples one after another. Unused tokens at its end are documents of
one token each (position 0) without loss.
"""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

import numpy as np
import torch
from tokenizers import Tokenizer

from .batches import Batch
from .corpus.mixture import training_examples
from .encoding import Encoded, encode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

QUEUE_SIZE = 4  # batches that each worker prepares in advance
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, int, int]  # see `pack`


def pack(encoded: Iterator[Encoded], rows: int, length: int) -> Iterator[tuple]:
    """Packs examples into batches; one that fits no row begins the next batch.

    Yields:
        (ids, positions, loss weights without and with prompts, each R×L; number of examples; number
        of tokens excluding padding).
    """
    arrays = [np.zeros((rows, length), dtype) for dtype in ("u2", "u2", "f4", "f4")]
    used, count = [0] * rows, 0
    for example in encoded:
        size = len(example.ids)
        if size > length:
            continue
        row = next((row for row in range(rows) if used[row] + size <= length), None)
        if row is None:
            yield (*arrays, count, sum(used))
            arrays = [np.zeros_like(each) for each in arrays]
            used, count, row = [0] * rows, 0, 0
        where = slice(used[row], used[row] + size)
        parts = (example.ids, np.arange(size), example.weights(False), example.weights(True))
        for array, part in zip(arrays, parts, strict=True):
            array[row, where] = part
        for weights in arrays[2:]:
            weights[row, used[row]] = 0  # no token precedes and predicts the first one
        used[row] += size
        count += 1


def _work(tokenizer: Path, seed: int, rows: int, length: int, queue: multiprocessing.Queue) -> None:
    loaded = Tokenizer.from_file(str(tokenizer))
    examples = training_examples(seed)
    for arrays in pack((encode(example, loaded) for example in examples), rows, length):
        queue.put(arrays)


class PackedBatches:
    """Infinite source of training batches, deterministic per seed and number of workers."""

    def __init__(self, tokenizer: Path, seed: int, rows: int, length: int, workers: int) -> None:
        self.shape = (rows, length)
        self.turn = 0
        context = multiprocessing.get_context("spawn")
        self.queues = [context.Queue(QUEUE_SIZE) for _ in range(workers)]
        for index, queue in enumerate(self.queues):
            arguments = (tokenizer, 1000 * seed + index, rows, length, queue)
            context.Process(target=_work, args=arguments, daemon=True).start()

    def take(self, with_prompt: bool) -> Batch:
        """Returns the next batch."""
        queue = self.queues[self.turn % len(self.queues)]
        self.turn += 1
        ids, positions, without, with_prompts, examples, tokens = queue.get()
        ids = ids.ravel().astype(np.int64)
        weights = (with_prompts if with_prompt else without).ravel()
        where = np.flatnonzero(weights[1:])
        return Batch(
            torch.from_numpy(ids),
            torch.from_numpy(positions.ravel().astype(np.int64)),
            [self.shape],
            torch.from_numpy(where),
            torch.from_numpy(ids[where + 1]),
            torch.from_numpy(weights[where + 1]),
            examples,
            tokens,
        )
