"""Continuous batching with llama.cpp, as in its parallel example and server.

Every step has one token per decoding sequence, and fills the batch with prompts in prefill. The
slot of a finished sequence goes to the next request.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .llama_cpp_worker import UBATCH, Context


@dataclass
class Slot:
    """A request in a slot.

    Attributes:
        prompt: prompt tokens not yet computed.
        remaining: output tokens still to generate.
        token: latest token.
        length: tokens in llama.cpp's cache.
    """

    prompt: list[int]
    remaining: int
    token: int = -1
    length: int = 0


def serve_requests(
    context: Context, prompts: Sequence[Sequence[int]], output_lens: Sequence[int], places: int
) -> dict[str, Any]:
    """Runs all requests; returns the seconds and the number of output tokens."""
    waiting = deque(zip(prompts, output_lens, strict=True))
    slots: list[Slot | None] = [None] * places
    started = time.perf_counter()
    count = 0
    while waiting or any(slots):
        for place, slot in enumerate(slots):
            if slot is None and waiting:
                prompt, output_len = waiting.popleft()
                context.cut(0, place)
                slots[place] = Slot(list(prompt), output_len)
        entries, outputs, speaking = plan(slots)
        for place, token in zip(speaking, context.decode(entries, outputs), strict=True):
            slot = slots[place]
            assert slot is not None
            slot.token, slot.remaining, count = token, slot.remaining - 1, count + 1
            if slot.remaining == 0:
                slots[place] = None
    return {"seconds": time.perf_counter() - started, "tokens": count}


def plan(slots: Sequence[Slot | None]) -> tuple[list[tuple[int, int, int]], list[int], list[int]]:
    """One step: (token, position, sequence) entries, indices with outputs, and their slots."""
    entries: list[tuple[int, int, int]] = []
    outputs, speaking = [], []
    for place, slot in enumerate(slots):
        if slot is not None and not slot.prompt:
            entries.append((slot.token, slot.length, place))
            slot.length += 1
            outputs.append(len(entries) - 1)
            speaking.append(place)
    for place, slot in enumerate(slots):
        if slot is not None and slot.prompt:
            chunk = slot.prompt[: UBATCH - len(entries)]
            entries += [(token, slot.length + i, place) for i, token in enumerate(chunk)]
            slot.length += len(chunk)
            del slot.prompt[: len(chunk)]
            if chunk and not slot.prompt:
                outputs.append(len(entries) - 1)
                speaking.append(place)
    return entries, outputs, speaking
