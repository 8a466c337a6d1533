"""Subjects of paragraphs in `reading.py`: shops, ships, objects and pets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .names import first_name, number, one_of, person_name, place_name
from .worlds import (
    ANIMALS,
    COLOURS,
    DAYS,
    FOODS,
    GOODS,
    MATERIALS,
    PERSON,
    TOWN,
    YEARS,
    Attribute,
    World,
)

if TYPE_CHECKING:
    import random


def _shop_name(rng: random.Random, held_out: bool) -> str:
    place = place_name(rng, held_out)
    return rng.choice((f"the {place} Shop", f"the {place} Store", f"the House of {place}"))


def _thing_name(rng: random.Random, held_out: bool) -> str:
    thing = rng.choice(
        ["bell", "clock", "ring", "statue", "crown", "vase", "box", "mask", "lamp", "sword", "harp"]
    )
    return f"the {thing} of {place_name(rng, held_out)}"


def _ship_name(rng: random.Random, held_out: bool) -> str:
    return f"the ship {place_name(rng, held_out)}"


def _pet_name(rng: random.Random, held_out: bool) -> str:
    return f"the {ANIMALS(rng, held_out)} {first_name(rng, held_out)}"


OWNER = Attribute(
    person_name,
    ("{s} belongs to {v}.", "The owner of {n} is {v}.", "{s} is owned by {v}."),
    (
        "Who owns {n}?",
        "To whom does {n} belong?",
        "Who is the owner of {n}?",
        "What is the name of the owner of {n}?",
        "Tell me who owns {n}.",
    ),
    "{v} owns {n}.",
)
COLOUR = Attribute(
    COLOURS,
    ("{s} is {v}.", "The colour of {n} is {v}."),
    (
        "What colour is {n}?",
        "What is the colour of {n}?",
        "Which colour does {n} have?",
        "Which colour is {n}?",
        "Tell me the colour of {n}.",
    ),
    "The colour of {n} is {v}.",
)

SHOP = World(
    _shop_name,
    ("it", "the shop", "{n}"),
    (
        OWNER,
        Attribute(
            GOODS,
            ("{s} sells {v}.", "People buy {v} there.", "{s} is known for its {v}."),
            (
                "What does {n} sell?",
                "What can you buy in {n}?",
                "What is sold in {n}?",
                "What do people buy in {n}?",
                "Tell me what {n} sells.",
            ),
            "{n} sells {v}.",
        ),
        Attribute(
            YEARS,
            ("{s} opened in {v}.", "{s} has been open since {v}."),
            (
                "When did {n} open?",
                "In which year did {n} open?",
                "What year did {n} open?",
                "In what year did {n} open?",
                "Since when is {n} open?",
            ),
            "{n} opened in {v}.",
        ),
        Attribute(
            DAYS,
            ("{s} is closed on {v}.", "On {v} {s} is closed."),
            (
                "On which day is {n} closed?",
                "When is {n} closed?",
                "What day is {n} closed?",
                "On what day is {n} closed?",
                "Tell me when {n} is closed.",
            ),
            "{n} is closed on {v}.",
        ),
        Attribute(
            one_of("Hill, Lake, Mill, Rose, Market, Church, Garden, Bridge, School, Harbour, King"),
            ("{s} is on {v} Street.", "You find {n} on {v} Street."),
            (
                "On which street is {n}?",
                "Where is {n}?",
                "What street is {n} on?",
                "Which street is {n} on?",
                "On what street is {n}?",
            ),
            "{n} is on {v} Street.",
        ),
    ),
)
SHIP = World(
    _ship_name,
    ("it", "the ship", "{n}"),
    (
        Attribute(
            person_name,
            ("Its captain is {v}.", "The captain of {n} is {v}."),
            (
                "Who is the captain of {n}?",
                "What is the name of the captain of {n}?",
                "Name the captain of {n}.",
                "Tell me who the captain of {n} is.",
                "Tell me the name of the captain of {n}.",
            ),
            "The captain of {n} is {v}.",
        ),
        Attribute(
            place_name,
            ("{s} sails to {v}.", "Every month {s} sails to {v}."),
            (
                "Where does {n} sail to?",
                "To which place does {n} sail?",
                "To which port does {n} sail?",
                "Which place does {n} sail to?",
                "Tell me where {n} sails to.",
            ),
            "{n} sails to {v}.",
        ),
        Attribute(
            one_of("salt, wool, tea, grain, wine, coal, silk, sugar, oil, timber, rice, spices"),
            ("{s} carries {v}.", "{s} is full of {v}."),
            (
                "What does {n} carry?",
                "What is on board of {n}?",
                "Tell me what {n} carries.",
                "Which goods does {n} carry?",
                "What goods does {n} carry?",
            ),
            "{n} carries {v}.",
        ),
        Attribute(
            number(5, 90),
            ("{s} has a crew of {v} sailors.", "{v} sailors work on it."),
            (
                "How many sailors are on {n}?",
                "How many sailors work on {n}?",
                "How large is the crew of {n}?",
                "How many sailors does {n} have?",
                "Tell me how many sailors are on {n}.",
            ),
            "{n} has {v} sailors.",
        ),
        COLOUR,
    ),
)
THING = World(
    _thing_name,
    ("it", "{n}"),
    (
        Attribute(
            MATERIALS,
            ("{s} is made of {v}.", "{s} was formed from {v}."),
            (
                "What is {n} made of?",
                "Of what is {n} made?",
                "From which material is {n}?",
                "Which material is {n} made of?",
                "Tell me what {n} is made of.",
            ),
            "{n} is made of {v}.",
        ),
        Attribute(
            person_name,
            ("{v} found it.", "{s} was found by {v}."),
            (
                "Who found {n}?",
                "By whom was {n} found?",
                "What is the name of the person who found {n}?",
                "Tell me who found {n}.",
                "Name the person who found {n}.",
            ),
            "{v} found {n}.",
        ),
        Attribute(
            one_of(
                "under a bridge, in a cave, behind a door, in an old chest, under a "
                "tree, in a well,"
                "on a hill, in a garden, near a lake, in a barn, below a church, in a field"
            ),
            ("{s} was discovered {v}.", "{s} had been hidden {v}."),
            (
                "Where was {n} discovered?",
                "Where had {n} been hidden?",
                "Where was {n} hidden?",
                "Tell me where {n} was hidden.",
                "Tell me where {n} was discovered.",
            ),
            "{n} was hidden {v}.",
        ),
        Attribute(
            place_name,
            ("Today it stands in the museum of {v}.", "{s} is now in the museum of {v}."),
            (
                "In which museum is {n}?",
                "Where is {n} today?",
                "Where can you see {n}?",
                "In which museum can you see {n}?",
                "Which museum has {n}?",
            ),
            "{n} is in the museum of {v}.",
        ),
        Attribute(
            YEARS,
            ("{s} was made in {v}.", "{s} dates from {v}."),
            (
                "When was {n} made?",
                "In which year was {n} made?",
                "What year was {n} made?",
                "In what year was {n} made?",
                "Tell me when {n} was made.",
            ),
            "{n} was made in {v}.",
        ),
    ),
)
PET = World(
    _pet_name,
    ("it", "{n}", "the animal"),
    (
        OWNER,
        COLOUR,
        Attribute(
            FOODS,
            ("{s} likes to eat {v}.", "Once {s} stole {v}."),
            (
                "What does {n} like to eat?",
                "What food does {n} like?",
                "Which food does {n} like?",
                "Which food does {n} like to eat?",
                "Tell me what {n} likes to eat.",
            ),
            "{n} likes {v}.",
        ),
        Attribute(
            one_of(
                "in a basket, on the sofa, in the barn, under the table, in the kitchen, "
                "on the roof,"
                "near the fire, in a box, under the bed, in the garden"
            ),
            ("{s} sleeps {v}.", "At night {s} sleeps {v}."),
            (
                "Where does {n} sleep?",
                "At night, where does {n} sleep?",
                "Do you know where {n} sleeps?",
                "Tell me where {n} sleeps.",
                "Where does {n} sleep at night?",
            ),
            "{n} sleeps {v}.",
        ),
        Attribute(
            number(1, 20),
            ("{s} is {v} years old.", "{s} turned {v} this year."),
            (
                "How old is {n}?",
                "What is the age of {n}?",
                "What age is {n}?",
                "Tell me how old {n} is.",
                "Tell me the age of {n}.",
            ),
            "{n} is {v} years old.",
        ),
    ),
)

WORLDS = (PERSON, TOWN, SHOP, SHIP, THING, PET)
