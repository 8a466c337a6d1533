"""Chats of two or three unrelated questions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .arithmetic import arithmetic
from .capitals import capital
from .conversations import small_talk
from .example import Example, chat
from .identity import identity, unknown
from .single_facts import fact
from .terms import term

if TYPE_CHECKING:
    import random

PARTS = (capital, fact, fact, term, arithmetic, small_talk, unknown, identity)


def mixed(rng: random.Random, held_out: bool) -> Example:
    """Makes a chat of unrelated questions; each answer depends only on its question."""
    parts = [make(rng, held_out) for make in rng.choices(PARTS, k=rng.choice((2, 2, 3)))]
    turns = [message["content"] for part in parts for message in part.messages]
    return chat("conversation", parts[-1].thought, *turns)
