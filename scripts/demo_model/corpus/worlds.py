"""Subjects of paragraphs in `reading.py`: persons and towns.

An attribute has statement templates, question templates (one in five held out for evaluation) and
an answer template. In templates, {n} is the full name of the person or town, {s} the sentence's
grammatical subject (like 'The town', or the name), {v} the attribute's value.
"""

from __future__ import annotations

from dataclasses import dataclass

from .names import Draw, first_name, number, one_of, person_name, place_name


@dataclass(frozen=True)
class Attribute:
    """An attribute: value sampler, and templates as described in the module docstring."""

    draw: Draw
    states: tuple[str, ...]
    questions: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class World:
    """A kind of paragraph subject, like towns: name sampler, grammatical subjects, attributes."""

    name: Draw
    subjects: tuple[str, ...]
    attributes: tuple[Attribute, ...]


COLOURS = one_of(
    "red, blue, green, yellow, white, black, orange, purple, brown, grey, pink, silver"
)
JOBS = one_of(
    "baker, teacher, doctor, pilot, farmer, sailor, tailor, painter, chef, plumber, carpenter,"
    "librarian, dentist, gardener, mechanic, musician, judge, fisherman, nurse, potter"
)
ANIMALS = one_of("dog, cat, parrot, rabbit, horse, goat, hamster, turtle, goose, pony, owl, duck")
FOODS = one_of(
    "apple pie, onion soup, fried fish, lemon cake, rye bread, plum jam, goat cheese, honey cake,"
    "bean stew, pear tart, smoked eel, barley soup, nut bread, cherry cake, mushroom soup"
)
HOBBIES = one_of(
    "chess, painting, swimming, singing, fishing, sewing, dancing, cycling, gardening, reading,"
    "running, skating, sailing, climbing, cooking"
)
DAYS = one_of("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")
MONTHS = one_of(
    "January, February, March, April, May, June, July, August, September, October, November,"
    "December"
)
MATERIALS = one_of(
    "copper, silver, wood, glass, stone, iron, gold, clay, bronze, marble, ivory, tin"
)
GOODS = one_of(
    "clocks, shoes, books, lamps, hats, toys, tea, flowers, maps, candles, bicycles, carpets,"
    "pens, mirrors, kites, boots, spices, baskets"
)
YEARS = number(1700, 2020)

PERSON = World(
    person_name,
    ("{first}", "{first}", "{n}"),
    (
        Attribute(
            JOBS,
            ("{s} works as a {v}.", "{s} is a {v}.", "{s} has worked as a {v} for years."),
            (
                "What does {n} do for a living?",
                "What is the job of {n}?",
                "What is {n}'s job?",
                "What job does {n} have?",
                "What work does {n} do?",
                "As what does {n} work?",
            ),
            "{n} works as a {v}.",
        ),
        Attribute(
            place_name,
            ("{s} lives in {v}.", "{s} has a small house in {v}.", "{s} moved to {v} long ago."),
            (
                "Where does {n} live?",
                "In which town does {n} live?",
                "What town does {n} live in?",
                "Which town does {n} live in?",
                "In which place does {n} live?",
                "Tell me where {n} lives.",
            ),
            "{n} lives in {v}.",
        ),
        Attribute(
            COLOURS,
            ("{s} likes the colour {v} best.", "{s}'s favourite colour is {v}."),
            (
                "What is the favourite colour of {n}?",
                "Which colour does {n} like best?",
                "What is {n}'s favourite colour?",
                "What colour does {n} like best?",
                "Tell me the favourite colour of {n}.",
            ),
            "The favourite colour of {n} is {v}.",
        ),
        Attribute(
            lambda rng, held_out: f"{ANIMALS(rng, held_out)} called {first_name(rng, held_out)}",
            ("{s} has a {v}.", "{s} owns a {v}.", "At home {s} keeps a {v}."),
            (
                "What pet does {n} have?",
                "Which animal does {n} have?",
                "What animal does {n} keep?",
                "Which pet does {n} have?",
                "Tell me what pet {n} has.",
            ),
            "{n} has a {v}.",
        ),
        Attribute(
            HOBBIES,
            ("{s} enjoys {v}.", "In the evening {s} enjoys {v}.", "{s}'s hobby is {v}."),
            (
                "What is the hobby of {n}?",
                "What does {n} enjoy?",
                "Which hobby does {n} have?",
                "What hobby does {n} have?",
                "Tell me the hobby of {n}.",
            ),
            "{n} enjoys {v}.",
        ),
        Attribute(
            FOODS,
            ("{s} loves {v}.", "{s} eats {v} every week.", "The food that {s} likes best is {v}."),
            (
                "What food does {n} love?",
                "What does {n} like to eat?",
                "What is the favourite food of {n}?",
                "Which food does {n} love?",
                "Which food does {n} like to eat?",
            ),
            "{n} loves {v}.",
        ),
        Attribute(
            number(18, 90),
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
        Attribute(
            person_name,
            ("{s} is a good friend of {v}.", "{s}'s best friend is {v}."),
            (
                "Who is the best friend of {n}?",
                "Who is {n}'s best friend?",
                "Who is a friend of {n}?",
                "Tell me who the best friend of {n} is.",
                "Who is the friend of {n}?",
            ),
            "The best friend of {n} is {v}.",
        ),
    ),
)

TOWN = World(
    place_name,
    ("the town", "{n}", "{n}", "it"),
    (
        Attribute(
            place_name,
            ("{s} lies on the river {v}.", "The river {v} flows through {n}."),
            (
                "On which river does {n} lie?",
                "Which river flows through {n}?",
                "What is the river of {n} called?",
                "What river flows through {n}?",
                "On what river does {n} lie?",
                "Name the river of {n}.",
            ),
            "{n} lies on the river {v}.",
        ),
        Attribute(
            person_name,
            ("The mayor of {n} is {v}.", "The mayor is {v}.", "{s} has a mayor named {v}."),
            (
                "Who is the mayor of {n}?",
                "What is the name of the mayor of {n}?",
                "Name the mayor of {n}.",
                "Tell me who the mayor of {n} is.",
                "Tell me the name of the mayor of {n}.",
            ),
            "The mayor of {n} is {v}.",
        ),
        Attribute(
            YEARS,
            ("{s} was founded in {v}.", "{s} was built in the year {v}."),
            (
                "When was {n} founded?",
                "In which year was {n} founded?",
                "In what year was {n} founded?",
                "Tell me when {n} was founded.",
                "What year was {n} founded in?",
            ),
            "{n} was founded in {v}.",
        ),
        Attribute(
            lambda rng, held_out: str(rng.randint(2, 99) * rng.choice((100, 1000))),
            ("About {v} people live there.", "{s} has {v} inhabitants."),
            (
                "How many people live in {n}?",
                "How many inhabitants does {n} have?",
                "What is the number of people in {n}?",
                "Tell me how many people live in {n}.",
                "How many people are there in {n}?",
            ),
            "{v} people live in {n}.",
        ),
        Attribute(
            FOODS,
            ("{s} is famous for its {v}.", "People come to {n} for the {v}."),
            (
                "What is {n} famous for?",
                "For what is {n} famous?",
                "What food is {n} famous for?",
                "Which food is {n} famous for?",
                "Tell me what {n} is famous for.",
            ),
            "{n} is famous for its {v}.",
        ),
        Attribute(
            DAYS,
            ("The market of {n} is held on {v}.", "There is a market every {v}."),
            (
                "On which day is the market of {n}?",
                "When is the market in {n}?",
                "What day is the market in {n}?",
                "On what day is the market of {n}?",
                "On which day is there a market in {n}?",
            ),
            "The market of {n} is on {v}.",
        ),
        Attribute(
            COLOURS,
            ("The trams of {n} are {v}.", "Its trams are {v}.", "All trams are painted {v}."),
            (
                "What colour are the trams of {n}?",
                "Which colour do the trams of {n} have?",
                "What is the colour of the trams in {n}?",
                "Which colour are the trams of {n}?",
                "Tell me the colour of the trams of {n}.",
            ),
            "The trams of {n} are {v}.",
        ),
        Attribute(
            MONTHS,
            ("A festival takes place in {v}.", "{s} has a festival every {v}."),
            (
                "When is the festival of {n}?",
                "In which month is the festival of {n}?",
                "In what month does the festival of {n} take place?",
                "In which month does the festival of {n} take place?",
                "Tell me when the festival of {n} is.",
            ),
            "The festival of {n} is in {v}.",
        ),
        Attribute(
            number(20, 180),
            ("The tower of {n} is {v} metres high.", "Its old tower is {v} metres high."),
            (
                "How high is the tower of {n}?",
                "What is the height of the tower of {n}?",
                "How many metres high is the tower of {n}?",
                "Tell me how high the tower of {n} is.",
                "How high is the tower in {n}?",
            ),
            "The tower of {n} is {v} metres high.",
        ),
        Attribute(
            MATERIALS,
            ("The bridge of {n} is made of {v}.", "Its only bridge is built of {v}."),
            (
                "What is the bridge of {n} made of?",
                "Of what is the bridge of {n} made?",
                "From which material is the bridge of {n}?",
                "Which material is the bridge of {n} made of?",
                "Tell me what the bridge of {n} is made of.",
            ),
            "The bridge of {n} is made of {v}.",
        ),
    ),
)
