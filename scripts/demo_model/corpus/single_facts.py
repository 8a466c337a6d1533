"""Questions about everyday facts, from `facts.py` and `tables/singles.txt`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .example import Example, chat
from .facts import RELATIONS
from .paraphrase import maybe_lowercase, phrase
from .tables import read_rows

if TYPE_CHECKING:
    import random

SINGLES = read_rows("singles")


def fact(rng: random.Random, held_out: bool) -> Example:
    """Makes a question about a fact from a relation or from the table."""
    if rng.random() < 0.3:
        answer, *questions = rng.choice(SINGLES)
        question = phrase(rng, questions, held_out)
        thought = f"This is an everyday fact. {answer}"
        return chat("facts", thought, maybe_lowercase(rng, question), answer)
    relation = rng.choice(RELATIONS)
    x, y = rng.choice(relation.pairs())
    question = phrase(rng, relation.questions, held_out, x=x)
    answer = relation.answer.format(x=x, y=y)
    thought = f"The user asks for {relation.topic.format(x=x)}. It is {y}."
    return chat("facts", thought, maybe_lowercase(rng, question), answer[0].upper() + answer[1:])
