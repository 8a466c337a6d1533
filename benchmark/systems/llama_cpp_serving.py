"""Continuous batching with llama.cpp, as in its parallel example and server.

Every step runs one token per decoding sequence and fills the batch with prefill chunks. The slot of
a finished sequence is reused for the next request.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .llama_cpp_worker import UBATCH, Context


@dataclass
class Slot:
    """A request in a slot."""

    prompt: list[int]  # tokens not yet computed
    remaining: int  # output tokens to generate
    token: int = -1  # latest output token
    length: int = 0  # tokens in llama.cpp's KV cache


def serve_requests(
    context: Context, prompts: Sequence[Sequence[int]], output_lens: Sequence[int], num_slots: int
) -> dict[str, Any]:
    """Runs all requests; returns the seconds and the number of output tokens."""
    pending = deque(zip(prompts, output_lens, strict=True))
    slots: list[Slot | None] = [None] * num_slots
    started = time.perf_counter()
    count = 0
    while pending or any(slots):
        for index, slot in enumerate(slots):
            if slot is None and pending:
                prompt, output_len = pending.popleft()
                context.truncate(0, index)
                slots[index] = Slot(list(prompt), output_len)
        entries, outputs, output_slots = plan(slots)
        for index, token in zip(output_slots, context.decode(entries, outputs), strict=True):
            slot = slots[index]
            assert slot is not None
            slot.token, slot.remaining, count = token, slot.remaining - 1, count + 1
            if slot.remaining == 0:
                slots[index] = None
    return {"seconds": time.perf_counter() - started, "tokens": count}


def plan(slots: Sequence[Slot | None]) -> tuple[list[tuple[int, int, int]], list[int], list[int]]:
    """Plans a step: its entries, the indices of entries with outputs, and the outputs' slots.

    An entry is (token, position, sequence).
    """
    entries: list[tuple[int, int, int]] = []
    outputs, output_slots = [], []
    for index, slot in enumerate(slots):
        if slot is not None and not slot.prompt:
            entries.append((slot.token, slot.length, index))
            slot.length += 1
            outputs.append(len(entries) - 1)
            output_slots.append(index)
    for index, slot in enumerate(slots):
        if slot is not None and slot.prompt:
            chunk = slot.prompt[: UBATCH - len(entries)]
            entries += [(token, slot.length + i, index) for i, token in enumerate(chunk)]
            slot.length += len(chunk)
            del slot.prompt[: len(chunk)]
            if chunk and not slot.prompt:
                outputs.append(len(entries) - 1)
                output_slots.append(index)
    return entries, outputs, output_slots
