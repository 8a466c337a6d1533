"""Fields of `config.json`: numbers and switches that make sense, or a sentence that says why."""

from collections.abc import Mapping
from typing import Any

from ...errors import short_repr

Fields = Mapping[str, Any]

MAX_NUMBER = 1e30  # of a config; float32 ends at 3e38


def required_field(fields: Fields, name: str) -> Any:
    """A field that must be there.

    Raises:
        ValueError: it is not.
    """
    if name not in fields:
        raise ValueError(f"config.json has no {name}")
    return fields[name]


def positive_int(fields: Fields, name: str, default: int | None = None) -> int:
    """A positive whole number.

    Args:
        fields: those of an object in `config.json`.
        name: which.
        default: for a field that is missing or null; None if it must be there.

    Raises:
        ValueError: it is missing, or something else.
    """
    if default is not None and fields.get(name) is None:
        return default
    value = required_field(fields, name)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ValueError(
            f"config.json has {name} {short_repr(value)}, expected a positive whole number"
        )
    return value


def positive_float(fields: Fields, name: str, default: float | None = None) -> float:
    """A positive number; arguments and errors as `positive_int`."""
    if default is not None and fields.get(name) is None:
        return default
    value = required_field(fields, name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < MAX_NUMBER:
        raise ValueError(f"config.json has {name} {short_repr(value)}, expected a positive number")
    return value


def boolean(fields: Fields, name: str, default: bool = False) -> bool:
    """true or false; the default for a field that is missing or null.

    Raises:
        ValueError: it is something else.
    """
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ValueError(f"config.json has {name} {short_repr(value)}, expected true or false")
    return value


def reject_unknown_fields(fields: Fields, known: set[str], where: str = "config.json") -> None:
    """Refuses fields that are not known, unless they are off: null, false or empty.

    Raises:
        ValueError: it names the first.
    """
    for name, value in fields.items():
        if name not in known and value not in (None, False, [], {}, ""):
            raise ValueError(
                f"{where} has {name} {short_repr(value)}, which tiny-llm does not know; it is "
                "refused because it may change what the model computes"
            )
