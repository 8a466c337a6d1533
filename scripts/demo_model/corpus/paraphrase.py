"""Question templates, and phrases that people wrap around a question.

A fifth of each question's templates and some wrappings are *held out*: they never occur in
training, and evaluation uses only held-out templates. A correct answer thus shows that the model
generalizes to a new wording of a known fact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

# Of every five templates, the fourth is held out.
HELD_OUT_EVERY = 5
HELD_OUT_INDEX = 3


def split_templates(templates: Sequence[str], held_out: bool) -> list[str]:
    """Templates for training or, if `held_out`, for evaluation."""
    return [
        text
        for index, text in enumerate(templates)
        if (index % HELD_OUT_EVERY == HELD_OUT_INDEX) == held_out
    ]


def lower_first(text: str) -> str:
    """Lowercases the first letter, unless the text starts with 'I' or an abbreviation."""
    if text[:2] in ("I ", "I'") or text[1:2].isupper() or text[1:2] == "-":
        return text
    return text[0].lower() + text[1:]


def strip_final_mark(text: str) -> str:
    """Strips the final question mark or period."""
    return text.rstrip("?.")


Wrapping = Callable[[str], str]

WRAPPINGS: list[Wrapping] = [
    lambda q: f"Please tell me: {lower_first(q)}",
    lambda q: f"Question: {q}",
    lambda q: f"{q} Please answer briefly.",
    lambda q: f"I have a question. {q}",
    lambda q: f"Hello. {q}",
    lambda q: strip_final_mark(q),
    lambda q: lower_first(q),
    lambda q: lower_first(strip_final_mark(q)),
    lambda q: f"{q} Thanks.",
    lambda q: f"Quick question: {lower_first(q)}",
    lambda q: f"Hey, {lower_first(q)}",
    lambda q: f"Can you help me? {q}",
    lambda q: f"{q} Please.",
    lambda q: f"Hi! {q}",
]

HELD_OUT_WRAPPINGS: list[Wrapping] = [
    lambda q: f"Hello! {q}",
    lambda q: f"I have a quick question: {lower_first(q)}",
    lambda q: f"{q} Please tell me.",
    lambda q: f"Help me: {lower_first(q)}",
]


def phrase(rng: random.Random, templates: Sequence[str], held_out: bool, **slots: object) -> str:
    """Fills a random template; half of the questions get one of the wrappings."""
    question = rng.choice(split_templates(templates, held_out)).format(**slots)
    question = question[0].upper() + question[1:]
    if rng.random() < 0.5:
        return question
    wrappings = WRAPPINGS + HELD_OUT_WRAPPINGS if held_out else WRAPPINGS
    return rng.choice(wrappings)(question)


def maybe_lowercase(rng: random.Random, question: str) -> str:
    """Occasionally lowercases the entire question."""
    return strip_final_mark(question).lower() if rng.random() < 0.06 else question
