"""Questions about a paragraph of invented facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .example import Example, chat
from .paraphrase import phrase
from .worlds_more import WORLDS

if TYPE_CHECKING:
    import random

    from .worlds import Attribute, World

LAYOUTS = (
    "{p}\n\n{q}",
    "{p}\n\n{q}",
    "{p} {q}",
    "Text: {p}\n\nQuestion: {q}",
    "Read this text.\n\n{p}\n\n{q}",
    "{q}\n\n{p}",
    "Here is a text: {p}\n{q}",
)
FILLERS = (
    "The weather was fine that day.",
    "Many people know this.",
    "Nobody knows the reason.",
    "This has been so for a long time.",
    "It was a quiet year.",
    "People like to talk about it.",
)


@dataclass(frozen=True)
class Statement:
    """A sentence of a paragraph, stating one attribute."""

    name: str
    attribute: Attribute
    value: str
    text: str


@dataclass(frozen=True)
class Thing:
    """The subject of a paragraph, such as a person or town, with the statements about it."""

    name: str
    statements: tuple[Statement, ...]


def upper_first(text: str) -> str:
    """Capitalizes the first letter."""
    return text[0].upper() + text[1:]


def _state(
    rng: random.Random, world: World, name: str, attribute: Attribute, value: str, first: bool
) -> Statement:
    """Makes a statement; the first statement about a thing contains its name."""
    states = [s for s in attribute.states if not first or "{s}" in s or "{n}" in s]
    subject = "{n}" if first else rng.choice(world.subjects)
    subject = subject.format(n=name, first=name.split()[0])
    text = rng.choice(states).format(s=subject, n=name, v=value)
    return Statement(name, attribute, value, upper_first(text))


def describe(rng: random.Random, world: World, count: int, held_out: bool) -> Thing:
    """Makes a thing of the kind `world`, with statements of `count` random attributes."""
    name = world.name(rng, held_out)
    attributes = rng.sample(world.attributes, len(world.attributes))
    statements = tuple(
        _state(rng, world, name, attribute, attribute.draw(rng, held_out), index == 0)
        for index, attribute in enumerate(attributes[:count])
    )
    return Thing(name, statements)


def paragraph(rng: random.Random, num_sentences: int, held_out: bool) -> tuple[str, list[Thing]]:
    """Returns a text of about `num_sentences` sentences, and the things that the text describes."""
    things: list[Thing] = []
    sentences: list[str] = []
    one_world = rng.choice(WORLDS) if rng.random() < 0.5 else None
    while len(sentences) < num_sentences:
        world = one_world or rng.choice(WORLDS)
        most = min(len(world.attributes), num_sentences - len(sentences) + 1)
        thing = describe(rng, world, rng.randint(min(3, most), most), held_out)
        things.append(thing)
        sentences += [statement.text for statement in thing.statements]
        if rng.random() < 0.1:
            sentences.append(rng.choice(FILLERS))
    return " ".join(sentences), things


def draw_length(rng: random.Random) -> int:
    """Samples the number of sentences: mostly 4 to 22, rarely up to 90."""
    choice = rng.random()
    if choice < 0.72:
        return rng.randint(4, 10)
    if choice < 0.96:
        return rng.randint(10, 22)
    return rng.randint(22, 90)


def _asked_name(rng: random.Random, name: str) -> str:
    """Name used in the question; sometimes only a person's first name."""
    is_person = len(name.split()) == 2 and name[0].isupper()
    return name.split()[0] if is_person and rng.random() < 0.25 else name


def _ask(rng: random.Random, statement: Statement, held_out: bool) -> tuple[str, str, str]:
    """Makes a question about a statement; returns (question, answer, reasoning)."""
    name = _asked_name(rng, statement.name)
    question = phrase(rng, statement.attribute.questions, held_out, n=name)
    answer = upper_first(statement.attribute.answer.format(n=name, v=statement.value))
    return question, answer, f'The text says: "{statement.text}"'


def reading(rng: random.Random, held_out: bool) -> Example:
    """Makes a chat about a paragraph: one question or, in training, often several."""
    text, things = paragraph(rng, draw_length(rng), held_out)
    statements = [statement for thing in things for statement in thing.statements]
    num_questions = 1 if held_out else min(len(statements), rng.choice((1, 1, 2, 3, 4)))
    if len(statements) > 24 and not held_out:
        num_questions = 6
    turns: list[str] = []
    thought = ""
    for statement in rng.sample(statements, num_questions):
        question, answer, thought = _ask(rng, statement, held_out)
        if not turns:
            question = rng.choice(LAYOUTS).format(p=text, q=question)
        turns += [question, answer]
    return chat("reading", thought, *turns)
