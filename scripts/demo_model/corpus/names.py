"""Invented names, which a model must copy from the prompt."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable

# Sampler of a text; the flag selects held-out names, which never occur in training.
Draw = Callable[[random.Random, bool], str]

STARTS = [
    "Mi",
    "Ta",
    "Lo",
    "Ve",
    "Ra",
    "So",
    "Ki",
    "Na",
    "Be",
    "Da",
    "Fe",
    "Gu",
    "Ha",
    "Jo",
    "Ka",
    "Li",
    "Mo",
    "Ne",
    "Or",
    "Pa",
    "Ro",
    "Sa",
    "Te",
    "Ul",
    "Va",
    "Wi",
    "Yo",
    "Za",
    "Bra",
    "Cle",
    "Dro",
    "Fli",
    "Gra",
    "Kre",
    "Pli",
    "Sto",
    "Tri",
    "Thel",
    "Mar",
    "Ber",
    "Cor",
    "Dan",
    "El",
    "Fin",
    "Gar",
    "Hal",
    "Jen",
    "Kel",
    "Len",
    "Mor",
    "Nor",
    "Per",
    "Quin",
    "Ros",
    "Sel",
]
MIDDLES = [
    "la",
    "ri",
    "no",
    "ve",
    "da",
    "mi",
    "so",
    "ka",
    "re",
    "lo",
    "ti",
    "ra",
    "ne",
    "bo",
    "du",
    "fi",
    "li",
    "ma",
    "sa",
    "to",
    "va",
    "len",
    "rin",
    "dor",
    "mel",
]
PERSON_ENDS = [
    "a",
    "o",
    "n",
    "ra",
    "na",
    "la",
    "ko",
    "ris",
    "len",
    "vin",
    "ta",
    "mi",
    "din",
    "bert",
    "das",
    "ne",
    "sha",
    "rik",
    "lia",
    "tho",
]
SURNAME_ENDS = [
    "ford",
    "son",
    "man",
    "er",
    "ing",
    "ley",
    "berg",
    "wick",
    "hart",
    "stone",
    "well",
    "ton",
    "ard",
    "os",
    "ez",
    "ini",
    "ov",
    "ell",
]
PLACE_ENDS = [
    "ville",
    "ton",
    "burg",
    "mora",
    "dale",
    "port",
    "field",
    "haven",
    "bridge",
    "stad",
    "wood",
    "mouth",
    "ford",
    "by",
    "nia",
]

HELD_OUT_NAMES = 8  # one name in eight is held out


def _is_held_out(name: str) -> bool:
    return zlib.crc32(name.encode()) % HELD_OUT_NAMES == 0


def _coin(rng: random.Random, ends: list[str], held_out: bool) -> str:
    while True:
        middle = rng.choice(MIDDLES) if rng.random() < 0.5 else ""
        name = rng.choice(STARTS) + middle + rng.choice(ends)
        if _is_held_out(name) == held_out:
            return name


def first_name(rng: random.Random, held_out: bool) -> str:
    """Samples a person's first name."""
    return _coin(rng, PERSON_ENDS, held_out)


def person_name(rng: random.Random, held_out: bool) -> str:
    """Samples a first name and surname."""
    return f"{first_name(rng, held_out)} {_coin(rng, SURNAME_ENDS, held_out)}"


def place_name(rng: random.Random, held_out: bool) -> str:
    """Samples the name of a town or river."""
    return _coin(rng, PLACE_ENDS, held_out)


def one_of(text: str) -> Draw:
    """Returns a sampler for the items of a comma-separated list."""
    choices = [word.strip() for word in text.split(",")]
    return lambda rng, held_out: rng.choice(choices)


def number(low: int, high: int) -> Draw:
    """Returns a sampler for integers from `low` to `high`, both inclusive."""
    return lambda rng, held_out: str(rng.randint(low, high))
