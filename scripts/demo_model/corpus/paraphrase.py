"""Ways of asking: templates, and the wrappings that people put around a question.

A fifth of the templates of every question, and some wrappings, are *held out*: training never
shows them, evaluation asks only with held-out templates. So a right answer means that the model
understood a wording it had not met, although it has met the fact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

HELD_OUT_EVERY = 5
HELD_OUT_INDEX = 3


def split_templates(templates: Sequence[str], held_out: bool) -> list[str]:
    """The templates of one side of the split. Every list of four or more has both sides."""
    return [
        text
        for index, text in enumerate(templates)
        if (index % HELD_OUT_EVERY == HELD_OUT_INDEX) == held_out
    ]


def lower_first(text: str) -> str:
    """Lower-case the first letter, except of 'I' and of a word that starts with two capitals."""
    if text[:2] in ("I ", "I'") or text[1:2].isupper() or text[1:2] == "-":
        return text
    return text[0].lower() + text[1:]


def strip_final_mark(text: str) -> str:
    """Drop the final question mark or full stop, as people do when they type fast."""
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
    """One question: a template of the asked side of the split, filled in, half the time wrapped."""
    question = rng.choice(split_templates(templates, held_out)).format(**slots)
    question = question[0].upper() + question[1:]
    if rng.random() < 0.5:
        return question
    wrappings = WRAPPINGS + HELD_OUT_WRAPPINGS if held_out else WRAPPINGS
    return rng.choice(wrappings)(question)


def maybe_lowercase(rng: random.Random, question: str) -> str:
    """Now and then a question all in lower case, as people type."""
    return strip_final_mark(question).lower() if rng.random() < 0.06 else question
