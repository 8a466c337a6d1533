"""Mixture of question types, for training and for held-out evaluation."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial

from .arithmetic import arithmetic
from .capitals import capital, capital_follow_up
from .conversations import memory, small_talk
from .example import Example, add_chat_options
from .identity import identity, unknown
from .json_answers import json_extract, json_fact
from .multi_topic import mixed
from .reading import reading
from .showcase import showcase
from .single_facts import fact
from .terms import introduction, term
from .tools import tool_chat

# Makes an example of one question type; the flag selects held-out wordings.
Maker = Callable[[random.Random, bool], Example]

# (relative frequency, maker)
TRAINING: tuple[tuple[float, Maker], ...] = (
    (6, capital),
    (3, capital_follow_up),
    (14, fact),
    (11, term),
    (1.2, introduction),
    (17, arithmetic),
    (40, reading),
    (6, memory),
    (4, mixed),
    (2, small_talk),
    (4, identity),
    (2, unknown),
    (0.5, showcase),
    (11, tool_chat),
    (18, json_extract),
    (13, json_fact),
)
EVALUATION: tuple[Maker, ...] = (
    capital,
    fact,
    term,
    introduction,
    arithmetic,
    partial(arithmetic, new_pair=True),
    reading,
    memory,
    capital_follow_up,
    mixed,
    small_talk,
    identity,
    unknown,
    tool_chat,
    tool_chat,
    json_fact,
    json_extract,
)
# Reduced frequencies of types that a model already knows, for continued training on new types.
KNOWN: dict[Maker, float] = {reading: 14, arithmetic: 14, fact: 11, term: 8}
# Shares of examples with thinking: text answers, and structured outputs (tool calls and JSON).
THINKING_SHARE, STRUCTURED_THINKING_SHARE = 0.28, 0.12


def training_examples(seed: int, is_continued: bool = False) -> Iterator[Example]:
    """Yields training examples indefinitely, deterministic per seed.

    `is_continued` reduces the share of known question types, for a model that lacks only tools and
    JSON.
    """
    rng = random.Random(seed)
    weights, makers = zip(*TRAINING, strict=True)
    if is_continued:
        weights = tuple(KNOWN.get(make, weight) for weight, make in TRAINING)
    while True:
        example = rng.choices(makers, weights)[0](rng, False)
        is_structured = example.kind.startswith(("tools", "JSON"))
        share = STRUCTURED_THINKING_SHARE if is_structured else THINKING_SHARE
        yield add_chat_options(example, rng, share)


def held_out_examples(seed: int, per_maker: int) -> list[Example]:
    """Makes distinct questions in held-out wordings, half of them with thinking enabled."""
    examples: list[Example] = []
    for index, make in enumerate(EVALUATION):
        rng = random.Random(seed * 1000 + index)
        seen: set[str] = set()
        for _ in range(20 * per_maker):
            if len(seen) == per_maker:
                break
            example = add_chat_options(make(rng, True), rng, 0.5)
            key = f"{example.prompt} {example.enable_thinking}"
            if key not in seen:
                seen.add(key)
                examples.append(example)
    return examples
