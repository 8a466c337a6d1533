"""Options: dataclass fields that are keywords, flags and rows of a table.

The definition of an option is its field: `block_size: int = option(32, "tokens per page", "N", int,
1)` in `EngineArgs` is a keyword of `LLM` and the flag `--block-size N`.
"""

import difflib
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from ...errors import UserError, check_int, short_repr, validate_bool, validate_number


@dataclass(frozen=True)
class Option:
    """Definition of an option, in its field's metadata.

    Attributes:
        help: help text, without the default.
        metavar: the flag's value in the help text.
        parse: `int`, `float`, `str`, `Path`, `byte_count`, `bool` for a flag without a value, or a
            function of the flag's text that raises ValueError.
        minimum: lower bound of a number.
        commands: commands with the flag; `serve` also reads it from text.
        flag: the flag, by default the field's name.
        alias: a second flag.
        flag_default: function of the value without the flag, if not the field's default.
        repeat: argparse's arguments for a flag with several values.
        engine_only: completes "only the engine …", for an option that the course's models lack;
            None if they have it.
        page: section of the book about the option.
    """

    default: Any
    help: str
    metavar: str | None = None
    parse: Callable[[str], Any] = str
    minimum: float = 0
    choices: Sequence[Any] = ()
    commands: Sequence[str] = ("serve",)
    flag: str = ""
    alias: str = ""
    flag_default: Callable[[], Any] = lambda: None
    repeat: Mapping[str, Any] = field(default_factory=dict)
    engine_only: str | None = "has this option"
    page: str = ""

    @property
    def shown_default(self) -> str:
        """The flag's default for texts; empty if the help text explains it."""
        default = self.flag_default()
        shown = self.default if default is None else default
        return "" if shown in (None, ()) or isinstance(shown, bool) else f"default: {shown}"

    def from_text(self, text: str) -> Any:
        """Converts a flag's text; ValueError if it is malformed, UserError with the reason."""
        if self.parse is bool:
            check_choice("value", text, ("true", "false"))
            return text == "true"
        value = self.parse(text)
        if isinstance(value, int | float) and not value >= self.minimum:
            raise UserError(f"must be at least {self.minimum}, got {text}")
        if self.choices:
            check_choice("value", value, self.choices)
        return value

    def check(self, name: str, value: Any) -> Any:
        """Checks a keyword's value; returns it, a whole number of bytes as an int."""
        if value is None and self.default is None:
            return None
        if self.choices:
            check_choice(name, value, (*self.choices, *([None] if self.default is None else [])))
        elif self.parse is bool:
            validate_bool(name, value)
        elif self.parse is float:
            allowed = f"a number of seconds {'>' if self.minimum else '≥'} 0"
            validate_number(name, value, 0, math.inf, allowed, above=self.minimum > 0)
        elif self.parse is Path and not isinstance(value, str | os.PathLike):
            raise UserError(f"{name} must be a path, got {short_repr(value)}.")
        elif isinstance(self.default, int) or self.parse in (int, byte_count):
            if self.parse is byte_count and isinstance(value, float) and value.is_integer():
                value = int(value)
            check_int(name, value, int(self.minimum))
        return value


def option(
    default: Any, help: str, metavar: str | None = None, parse: Any = str, *rest: Any, **others: Any
) -> Any:
    """Field with an `Option`."""
    if "choices" in others:
        parse = type(others["choices"][0])
    definition = Option(default, help, metavar, parse, *rest, **others)
    return field(default=default, metadata={"option": definition})


def options_of(owner: Any) -> dict[str, Option]:
    """Options of a dataclass, by field name."""
    return {each.name: each.metadata["option"] for each in fields(owner) if each.metadata}


def check_options(instance: Any) -> None:
    """Checks and converts the options of a dataclass instance."""
    for name, definition in options_of(instance).items():
        object.__setattr__(instance, name, definition.check(name, getattr(instance, name)))


def parse_options(values: Mapping[str, Any], *owners: Any) -> list[dict[str, Any]]:
    """Converts options given as text, as in `serve --model NAME=block-size=16`.

    Returns:
        The values for each dataclass.

    Raises:
        UserError: an unknown name or an invalid value.
    """
    options = [
        {name: each for name, each in options_of(owner).items() if "serve" in each.commands}
        for owner in owners
    ]
    check_names(values, [name for each in options for name in each])
    parsed: list[dict[str, Any]] = []
    for each in options:
        parsed.append({name: value for name, value in values.items() if name in each})
        for name, text in parsed[-1].items():
            if not isinstance(text, str):
                continue
            if each[name].repeat:
                raise UserError(f"{name} must be a list, got {short_repr(text)}.")
            try:
                parsed[-1][name] = each[name].from_text(text)
            except ValueError as error:
                raise UserError(f"{name}: {str(error).rstrip('.')}.") from error
    return parsed


def check_names(names: Iterable[str], known: Sequence[str]) -> None:
    """Rejects unknown names; the error suggests the closest known one."""
    for name in names:
        if name not in known:
            closest = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {closest[0]}?" if closest else "."
            raise UserError(f"unknown option {short_repr(name)}{hint}")


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    if value not in choices:
        *first, last = map(repr, choices)
        raise UserError(f"{name} must be {', '.join(first)} or {last}, got {short_repr(value)}.")


def byte_count(text: str) -> int:
    """Parses an integer, optionally in scientific notation, e.g. 1e9."""
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        if (value := float(text)).is_integer():
            return int(value)
    raise UserError(f"must be a whole number such as 536870912 or 1e9, got {text}")
