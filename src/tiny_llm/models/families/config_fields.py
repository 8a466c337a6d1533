"""Validated access to fields of `config.json`."""

from collections.abc import Mapping
from typing import Any

from ...errors import short_repr

Fields = Mapping[str, Any]

MAX_NUMBER = 1e30  # float32's maximum is 3e38


def required_field(fields: Fields, name: str) -> Any:
    """Value of a required field.

    Raises:
        ValueError: the field is missing.
    """
    if name not in fields:
        raise ValueError(f"config.json has no {name}")
    return fields[name]


def positive_int(fields: Fields, name: str, default: int | None = None) -> int:
    """Value of a positive integer field.

    Args:
        fields: an object of `config.json`.
        name: the field's name.
        default: value of a missing or null field; None if the field is required.

    Raises:
        ValueError: the field is missing or invalid.
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
    """Value of a positive number field; arguments and errors as in `positive_int`."""
    if default is not None and fields.get(name) is None:
        return default
    value = required_field(fields, name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < MAX_NUMBER:
        raise ValueError(f"config.json has {name} {short_repr(value)}, expected a positive number")
    return value


def boolean(fields: Fields, name: str, default: bool = False) -> bool:
    """Value of a boolean field; the default if missing or null.

    Raises:
        ValueError: the value is invalid.
    """
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ValueError(f"config.json has {name} {short_repr(value)}, expected true or false")
    return value


def reject_unknown_fields(fields: Fields, known: set[str], where: str = "config.json") -> None:
    """Rejects unknown fields, except null, false and empty ones.

    Raises:
        ValueError: names the first unknown field.
    """
    for name, value in fields.items():
        if name not in known and value not in (None, False, [], {}, ""):
            raise ValueError(
                f"{where} has {name} {short_repr(value)}, which tiny-llm does not know; it is "
                "refused because it may change what the model computes"
            )
