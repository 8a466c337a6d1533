"""Samplers for tool arguments and results: places, dates, files, messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .capitals import CAPITAL
from .names import first_name, one_of, person_name, place_name
from .worlds import COLOURS, DAYS, FOODS, GOODS, MONTHS

if TYPE_CHECKING:
    import random


def city(rng: random.Random, held_out: bool) -> str:
    """Samples a capital or an invented town."""
    return rng.choice(list(CAPITAL.values())) if rng.random() < 0.6 else place_name(rng, held_out)


def country(rng: random.Random, held_out: bool) -> str:
    """Samples a country, without its article."""
    return rng.choice(list(CAPITAL)).removeprefix("the ")


def person(rng: random.Random, held_out: bool) -> str:
    """Samples a first name or a full name."""
    return first_name(rng, held_out) if rng.random() < 0.5 else person_name(rng, held_out)


def clock(rng: random.Random, held_out: bool) -> str:
    """Samples a time of day."""
    return f"{rng.randint(0, 23)}:{rng.choice(('00', '15', '30', '45', '05', '20', '50'))}"


def date(rng: random.Random, held_out: bool) -> str:
    """Samples a date in one of several formats."""
    day, month = rng.randint(1, 28), MONTHS(rng, held_out)
    forms = (
        f"{rng.randint(1990, 2030)}-{rng.randint(1, 12):02d}-{day:02d}",
        f"{day} {month}",
        f"{month} {day}",
        DAYS(rng, held_out),
        DAYS(rng, held_out),
        "tomorrow",
        "today",
    )
    return rng.choice(forms)


def symbol(rng: random.Random, held_out: bool) -> str:
    """Samples a stock symbol."""
    return "".join(rng.choices("ABCDEFGHIKLMNOPRSTUVWX", k=rng.randint(3, 4)))


def message(rng: random.Random, held_out: bool) -> str:
    """Samples a short message, to be copied verbatim."""
    form = rng.choice(
        (
            "I am late",
            "the {g} are ready",
            "please bring {f}",
            "see you on {d}",
            "{n} is here",
            "we meet in {p}",
            "call {n}",
            "the train leaves at {t}",
            "happy birthday",
            "buy {g} and {f}",
            "I am in {p} on {d}",
            "thank you for the {f}",
        )
    )
    return form.format(
        g=GOODS(rng, held_out),
        f=FOODS(rng, held_out),
        d=DAYS(rng, held_out),
        n=first_name(rng, held_out),
        p=city(rng, held_out),
        t=clock(rng, held_out),
    )


def query(rng: random.Random, held_out: bool) -> str:
    """Samples a search query."""
    form = rng.choice(
        (
            "{g} in {p}",
            "cheap {g}",
            "{f}",
            "the history of {p}",
            "{n}",
            "{c} {g}",
            "the river {p}",
            "{g} and {f}",
            "hotels in {p}",
            "trains to {p}",
            "the festival of {p}",
        )
    )
    return form.format(
        g=GOODS(rng, held_out),
        f=FOODS(rng, held_out),
        c=COLOURS(rng, held_out),
        n=person_name(rng, held_out),
        p=city(rng, held_out),
    )


def file_name(rng: random.Random, held_out: bool) -> str:
    """Samples a file name, sometimes with a folder."""
    stem = rng.choice((place_name, first_name))(rng, held_out).lower()
    folder = rng.choice(("", "", "data/", "docs/", "/tmp/"))
    return f"{folder}{stem}.{rng.choice(('txt', 'py', 'md', 'csv', 'json'))}"


def word(rng: random.Random, held_out: bool) -> str:
    """Samples a word of an invented language."""
    return first_name(rng, held_out).lower()


def sentence(rng: random.Random, held_out: bool) -> str:
    """Samples a sentence, as a tool's result."""
    text = message(rng, held_out)
    return f"{text[0].upper()}{text[1:]}."


WEATHER = one_of("sunny, cloudy, rainy, windy, foggy, snowy, warm, cold, dry, stormy, clear")
LANGUAGES = one_of("French, German, Latin, Chinese, Spanish, Italian, Russian, Greek, Danish")
CURRENCIES = one_of("euros, dollars, pounds, yen, francs, USD, EUR, GBP, JPY, CHF")
UNITS = one_of("metres, kilometres, miles, feet, inches, litres, kilograms, pounds, grams, hours")
DEVICES = one_of("lamp, heater, radio, fan, oven, television, alarm, light, printer, camera")
ROOMS = one_of("kitchen, bedroom, hall, garden, office, bathroom, garage, cellar, living room")


def weather(rng: random.Random, held_out: bool) -> str:
    """Samples the weather, like 'sunny' or 'sunny, 21 degrees'."""
    sky = WEATHER(rng, held_out)
    return f"{sky}, {rng.randint(-9, 39)} degrees" if rng.random() < 0.4 else sky
