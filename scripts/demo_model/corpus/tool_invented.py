"""Invented tools, which look up a noun like 'height' or 'tavelmora'.

A request matches a tool only through this noun, which is also part of the tool's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .names import Draw, number, one_of, person_name, place_name
from .tool_kinds import Slot, ToolKind
from .tool_values import city, clock, date, file_name, person, sentence, symbol, word

if TYPE_CHECKING:
    import random

NOUNS = (
    "height, colour, owner, name, number, mayor, river, length, weight, address, street, job,"
    "teacher, book, room, status, score, level, speed, size, code, key, title, author, doctor,"
    "birthday, email, salary, balance, rating, menu, festival, market, museum, bridge, tower, road,"
    "distance, area, currency, language, king, team, captain, floor, door, page, date, year, month,"
    "taste, smell, sound, voice, shape, limit, error, version, state, region, member, leader"
)
# Patterns of tool names: {n} is the noun, {u} the capitalized noun.
PATTERNS = (
    "get_{n}", "find_{n}", "lookup_{n}", "{n}_of", "{n}_lookup", "{n}", "fetch_{n}", "show_{n}",
    "query_{n}", "read_{n}", "check_{n}", "list_{n}", "get{u}", "find{u}",
)  # fmt: skip
REQUESTS = (
    "What is the {n} of {a}?",
    "Find the {n} of {a}.",
    "Tell me the {n} of {a}.",
    "Look up the {n} of {a}.",
    "What's the {n} of {a}?",
    "Give me the {n} of {a}.",
    "{n} of {a}?",
    "I need the {n} of {a}.",
    "Which {n} does {a} have?",
    "Do you know the {n} of {a}?",
    "Please find the {n} of {a}.",
    "What {n} has {a}?",
    "Show me the {n} of {a}.",
    "Can you get the {n} of {a}?",
)
# First argument, {a} in requests: (alternative names, JSON type, value sampler).
SUBJECTS: tuple[tuple[tuple[str, ...], str, Draw], ...] = (
    (("name", "person", "who", "user", "full_name", "customer"), "string", person_name),
    (("name", "person", "user", "friend"), "string", person),
    (("place", "city", "town", "location", "where"), "string", place_name),
    (("city", "place", "destination"), "string", city),
    (("id", "number", "order_id", "code"), "integer", number(1, 9999)),
    (("file", "path", "name"), "string", file_name),
    (("symbol", "code", "key"), "string", symbol),
    (("word", "item", "text", "thing"), "string", word),
)
# Second argument of some tools, {b} in requests.
SECONDS: tuple[tuple[tuple[str, ...], str, Draw], ...] = (
    (("date", "day", "when"), "string", date),
    (("city", "place", "town"), "string", city),
    (("year",), "integer", number(1900, 2030)),
    (("user", "person", "by"), "string", person),
)
# Samplers of tool results.
VALUES = (
    number(1, 2000),
    person_name,
    place_name,
    clock,
    sentence,
    one_of("red, blue, green, open, closed, high, low, new, old, good, ready, lost, free, busy"),
)


def invented_kind(rng: random.Random, held_out: bool) -> ToolKind:
    """Makes a tool kind for one noun: an English word, or an invented place name."""
    noun = rng.choice(NOUNS.split(",")).strip()
    if rng.random() < 0.4:
        noun = place_name(rng, held_out).lower()
    name = rng.choice(PATTERNS).format(n=noun, u=noun.capitalize())
    names, type_name, draw = rng.choice(SUBJECTS)
    slots = [Slot(names, draw, type_name)]
    requests = tuple(text.replace("{n}", noun) for text in REQUESTS)
    topic = f"the {noun} of {{a}}"
    if rng.random() < 0.3:
        seconds, second_type, second = rng.choice(SECONDS)
        slots.append(Slot(seconds, second, second_type))
        form = rng.choice(("on", "in", "for", "at"))
        requests = tuple(f"{text[:-1]} {form} {{b}}{text[-1]}" for text in requests)
    values = rng.choice(VALUES)
    return ToolKind(
        (name,),
        (f"Get the {noun} of a {names[0]}.", f"Finds the {noun}.", f"The {noun} of something."),
        tuple(slots),
        requests,
        topic,
        (noun, "result", "value"),
        values,
        answer="{v}" if values is sentence else "{topic} is {v}.",
    )
