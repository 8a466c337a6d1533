"""Option metadata of dataclass fields, shared by keywords, flags and documentation.

    class EngineArgs:
        '''…
            block_size: tokens per KV cache page.
        '''
        block_size: int = option(32, "N", 1, commands=MODEL_COMMANDS)

This is the keyword `block_size` of `LLM` and the flag `--block-size N`. The annotation determines
the flag's type; the choices are those of a `Literal`.
"""

import difflib
import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from ...errors import UserError, check_int, short_repr, validate_bool, validate_number

# An entry in the `Attributes` of a docstring: name, and text with its continuation lines.
ATTRIBUTE = re.compile(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", re.MULTILINE)


@dataclass(frozen=True)
class Option:
    """Option of `EngineArgs` or `Settings`: its field and the field's metadata.

    Attributes:
        help: text of the dataclass's docstring.
        parse: function of the flag's text; by default, the annotation's type.
        commands: commands that accept the flag; `serve` also accepts the option in `--model
            NAME=…`.
        flag: the flag, by default the field's name.
        alias: a second flag.
        flag_default: returns the flag's default, or None for the field's default.
        repeat: argparse's arguments for a flag with several values.
        engine_only: completes the error "only the engine …"; None for an option that the course's
            models support, too.
        doc_link: section of the book about the option.
    """

    name: str
    default: Any
    help: str
    metavar: str | None = None
    minimum: float = 0
    parse: Callable[[str], Any] = str
    choices: Sequence[Any] = ()
    commands: Sequence[str] = ("serve",)
    flag: str = ""
    alias: str = ""
    flag_default: Callable[[], Any] = lambda: None
    repeat: Mapping[str, Any] = field(default_factory=dict)
    engine_only: str | None = "has this option"
    doc_link: str = ""

    @property
    def shown_default(self) -> str:
        """Default for help texts, e.g. "default: 32"; empty for None, () and booleans."""
        default = self.flag_default()
        shown = self.default if default is None else default
        return "" if shown in (None, ()) or isinstance(shown, bool) else f"default: {shown}"

    def from_text(self, text: str) -> Any:
        """Parses a flag's text.

        Raises:
            ValueError: the text is malformed; `UserError` if the value is not allowed.
        """
        if self.parse is bool:
            check_choice("value", text, ("true", "false"))
            return text == "true"
        value = self.parse(text)
        if isinstance(value, int | float) and not value >= self.minimum:
            raise UserError(f"must be at least {self.minimum}, got {text}")
        if self.choices:
            check_choice("value", value, self.choices)
        return value

    def check(self, value: Any) -> Any:
        """Checks a keyword's value; returns it, a whole number of bytes as an int."""
        if value is None and self.default is None:
            return None
        if self.choices:
            nullable = [None] if self.default is None else []
            check_choice(self.name, value, [*self.choices, *nullable])
        elif self.parse is bool:
            validate_bool(self.name, value)
        elif self.parse is float:  # a duration
            allowed = f"a number of seconds of at least {self.minimum:g}"
            validate_number(self.name, value, self.minimum, math.inf, allowed)
        elif self.parse is Path and not isinstance(value, str | os.PathLike):
            raise UserError(f"{self.name} must be a path, got {short_repr(value)}.")
        elif isinstance(self.default, int) or self.parse in (int, byte_count):
            if self.parse is byte_count and isinstance(value, float) and value.is_integer():
                value = int(value)
            check_int(self.name, value, int(self.minimum))
        return value


def option(default: Any, metavar: str | None = None, minimum: float = 0, **others: Any) -> Any:
    """Declares a dataclass field with the attributes of its `Option`."""
    metadata = {"metavar": metavar, "minimum": minimum, **others}
    return field(default=default, metadata=metadata)


@functools.cache
def options_of(cls: Any) -> dict[str, Option]:
    """Options of a dataclass, by field name."""
    texts = {name: " ".join(text.split()) for name, text in ATTRIBUTE.findall(cls.__doc__ or "")}
    found = {}
    for each in fields(cls):
        if each.metadata:
            kind: Any = each.type
            if get_origin(kind) in (Union, UnionType):
                kind = next(member for member in get_args(kind) if member is not NoneType)
            choices = get_args(kind) if get_origin(kind) is Literal else ()
            derived = {"choices": choices, "parse": type(choices[0]) if choices else kind}
            text = texts.get(each.name, "").rstrip(".")
            found[each.name] = Option(each.name, each.default, text, **{**derived, **each.metadata})
    return found


def check_options(instance: Any) -> None:
    """Checks and converts the options of a dataclass instance."""
    cls: Any = type(instance)
    for name, each in options_of(cls).items():
        object.__setattr__(instance, name, each.check(getattr(instance, name)))


def parse_options(values: Mapping[str, Any], *classes: type) -> list[dict[str, Any]]:
    """Converts options given as text, as in `serve --model NAME=block-size=16`.

    Returns:
        The values for each dataclass.

    Raises:
        UserError: an unknown name or an invalid value.
    """
    options = [
        {name: each for name, each in options_of(cls).items() if "serve" in each.commands}
        for cls in classes
    ]
    check_names(values, [name for each in options for name in each])
    return [
        {name: _parse(each[name], value) for name, value in values.items() if name in each}
        for each in options
    ]


def _parse(option: Option, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if option.repeat:
        raise UserError(f"{option.name} must be a list, got {short_repr(value)}.")
    try:
        return option.from_text(value)
    except ValueError as error:
        raise UserError(f"{option.name}: {str(error).rstrip('.')}.") from error


def check_names(names: Iterable[str], known: Sequence[str]) -> None:
    """Rejects unknown names; the error suggests the closest known one, or the list."""
    for name in names:
        if name not in known:
            closest = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {closest[0]}?" if closest else "see `tiny-llm serve --help`."
            raise UserError(f"unknown option {short_repr(name)}; {hint}")


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
