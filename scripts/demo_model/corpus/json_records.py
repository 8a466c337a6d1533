"""Short texts about persons, products, events and towns, with their fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .names import Draw, number, one_of, person_name, place_name
from .tool_values import city, clock, country, date
from .worlds import ANIMALS, COLOURS, FOODS, HOBBIES, JOBS, MATERIALS

if TYPE_CHECKING:
    import random


@dataclass(frozen=True)
class Field:
    """A key and its value; `names` are synonyms of the key."""

    key: str
    value: str | int
    names: tuple[str, ...] = ()

    def renamed(self, rng: random.Random) -> Field:
        """Returns the field with its default key or, less often, a synonym."""
        if not self.names or rng.random() < 0.6:
            return self
        return Field(rng.choice(self.names), self.value)


@dataclass(frozen=True)
class Part:
    """An attribute of a person, product, event or town.

    In its sentences, {s} is the grammatical subject and {v} the attribute's value.
    """

    key: str
    names: tuple[str, ...]
    draw: Draw
    sentences: tuple[str, ...]
    clause: str = ""  # form in a list that follows the name, like 'Mira, 34, from Lenmora'


def _email(rng: random.Random, held_out: bool) -> str:
    return f"{place_name(rng, held_out).lower()}@{rng.choice(('mail', 'post', 'home'))}.com"


PERSON = (
    Part("age", ("years", "age"), number(4, 96),
         ("{s} is {v} years old.", "{s} is {v}.", "{s} turned {v} this year."), "{v} years old"),
    Part("city", ("town", "home", "place", "location"), city,
         ("{s} lives in {v}.", "{s} comes from {v}.", "{s} has a house in {v}."), "from {v}"),
    Part("job", ("profession", "work", "occupation"), JOBS,
         ("{s} works as a {v}.", "{s} is a {v}."), "a {v}"),
    Part("hobby", ("likes", "interest"), HOBBIES, ("{s} likes {v}.", "{s} enjoys {v}.")),
    Part("email", ("mail", "address"), _email, ("Write to {v}.", "The email address is {v}.")),
    Part("phone", ("number", "phone_number"), number(1000, 99999),
         ("The phone number is {v}.", "Call {v}.")),
    Part("pet", ("animal",), ANIMALS, ("{s} has a {v}.", "{s} owns a {v}.")),
    Part("country", ("nation",), country, ("{s} was born in {v}.",)),
)  # fmt: skip
PRODUCT = (
    Part("price", ("cost", "amount", "euros"), number(1, 999),
         ("{s} costs {v} euros.", "The price is {v} euros."), "{v} euros"),
    Part("colour", ("color", "paint"), COLOURS,
         ("{s} is {v}.", "The colour is {v}.", "{s} comes in {v}."), "{v}"),
    Part("material", ("made_of", "stuff"), MATERIALS, ("{s} is made of {v}.",), "made of {v}"),
    Part("quantity", ("count", "stock", "number"), number(1, 90),
         ("There are {v} of them.", "We have {v} left.", "{v} are in stock.")),
    Part("maker", ("brand", "seller", "shop"), person_name, ("The maker is {v}.", "{v} made it.")),
)  # fmt: skip
EVENT = (
    Part("date", ("day", "when"), date, ("{s} is on {v}.", "The date is {v}."), "on {v}"),
    Part("place", ("city", "location", "where"), city,
         ("{s} takes place in {v}.", "Come to {v}.", "{s} is in {v}."), "in {v}"),
    Part("time", ("start", "hour"), clock, ("{s} begins at {v}.", "It starts at {v}."), "at {v}"),
    Part("host", ("organizer", "speaker", "person"), person_name,
         ("The host is {v}.", "{v} invites you.")),
    Part("guests", ("people", "attendees"), number(3, 400), ("{v} guests come.",)),
    Part("food", ("menu", "dish"), FOODS, ("There is {v}.", "We eat {v}.")),
)  # fmt: skip
TOWN = (
    Part("country", ("nation", "state"), country, ("{s} is in {v}.", "{s} lies in {v}.")),
    Part("population", ("people", "inhabitants"), number(200, 90000),
         ("{v} people live there.", "{s} has {v} inhabitants.")),
    Part("river", ("water",), place_name, ("{s} lies on the river {v}.",)),
    Part("mayor", ("leader", "head"), person_name, ("The mayor is {v}.", "{v} is the mayor.")),
    Part("founded", ("year", "since"), number(900, 1990), ("{s} was founded in {v}.",)),
)  # fmt: skip


THINGS = one_of(
    "clock, book, lamp, hat, toy, map, candle, bicycle, carpet, pen, mirror, kite, basket, chair,"
    "table, ring, bowl, knife, bag, coat, phone, radio"
)


def _product(rng: random.Random, held_out: bool) -> str:
    thing = THINGS(rng, held_out)
    return rng.choice((thing, f"{place_name(rng, held_out)} {thing}"))


def _event(rng: random.Random, held_out: bool) -> str:
    return rng.choice(("concert", "meeting", "party", "lecture", "festival", "market", "race"))


# First sentences of texts whose first attribute cannot introduce the name.
FIRST_SENTENCES = {
    "name": "This is {n}.",
    "product": "We sell the {n}.",
    "event": "You can come to the {n}.",
    "town": "We are in {n}.",
}
# (sampler of the name {n}, its key, key synonyms, later subjects ({f}: first name), attributes)
KINDS: tuple[tuple[Draw, str, tuple[str, ...], tuple[str, ...], tuple[Part, ...]], ...] = (
    (person_name, "name", ("person", "full_name", "who"), ("She", "He", "{f}"), PERSON),
    (_product, "product", ("item", "name", "article"), ("It", "The article"), PRODUCT),
    (_event, "event", ("title", "name", "what"), ("It", "The {n}"), EVENT),
    (place_name, "town", ("city", "name", "place"), ("It", "The town", "{n}"), TOWN),
)


def record(rng: random.Random, held_out: bool) -> tuple[str, list[Field]]:
    """Makes a text and its fields, in the text's order."""
    draw, key, names, subjects, parts = rng.choices(KINDS, (6, 2, 2, 1))[0]
    name = draw(rng, held_out)
    chosen = rng.sample(parts, rng.randint(1, min(4, len(parts))))
    values = [part.draw(rng, held_out) for part in chosen]
    fields = [Field(key, name, names)]
    fields += [
        Field(part.key, int(value) if value.isdigit() else value, part.names)
        for part, value in zip(chosen, values, strict=True)
    ]
    if all(part.clause for part in chosen) and rng.random() < 0.5:
        clauses = [part.clause.format(v=v) for part, v in zip(chosen, values, strict=True)]
        text = ", ".join([f"The {name}" if key in ("event", "product") else name, *clauses])
        return f"{text}.", fields
    sentences = []
    for index, (part, value) in enumerate(zip(chosen, values, strict=True)):
        subject = rng.choice(subjects).format(n=name, f=name.split()[0])
        if index == 0:
            subject = f"The {name}" if key in ("event", "product") else name
        templates = [text for text in part.sentences if index or text.startswith("{s}")]
        if not templates:
            sentences.append(FIRST_SENTENCES[key].format(n=name))
            templates = list(part.sentences)
        text = rng.choice(templates).format(s=subject, v=value)
        sentences.append(text[0].upper() + text[1:])
    return _with_ands(rng, sentences), fields


def _with_ands(rng: random.Random, sentences: list[str]) -> str:
    """Joins the sentences, sometimes merging two: 'Mira is 34 and lives in Lenmora.'."""
    for index in range(1, len(sentences)):
        before, after = sentences[index - 1], sentences[index]
        first, _, rest = after.partition(" ")
        can_merge = before.split()[0] not in ("Call", "Write", "The", "There", "We", "Come")
        if first in ("She", "He", "It") and can_merge and rng.random() < 0.4:
            joined = f"{before[:-1]} and {rest}"
            return " ".join([*sentences[: index - 1], joined, *sentences[index + 1 :]])
    return " ".join(sentences)
