"""Validated access to fields of `config.json`.

A missing or invalid field raises ValueError, whose message names the field.
"""

from collections.abc import Mapping
from typing import Any

from ...errors import short_repr

Fields = Mapping[str, Any]

MAX_INT32 = 2**31 - 1  # the kernels index arrays with int32
MAX_NUMBER = 1e30  # leaves a margin below float32's maximum of 3e38

# Families whose config nests the language model's fields in `text_config`, next to vision fields.
NESTED_FAMILIES = ("qwen3_5", "qwen3_5_moe")
VISION_FIELDS = (
    "vision_config",
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
)


def text_fields(config: Fields) -> Fields:
    """The language model's fields: the outer ones, overridden by `text_config`.

    For `NESTED_FAMILIES`, the vision tower's fields are dropped. Other configs, and configs without
    `text_config`, are returned unchanged.

    Raises:
        ValueError: `text_config` is not an object, has another family, or contradicts an outer
            field.
    """
    family, text = config.get("model_type"), config.get("text_config")
    if family not in NESTED_FAMILIES or text is None:
        return config
    if not isinstance(text, Mapping):
        raise invalid_field("text_config", text, "an object")
    if text.get("model_type", family) not in (family, f"{family}_text"):
        raise ValueError(
            f"config.json has model_type {short_repr(text['model_type'])} in text_config, expected "
            f"'{family}_text'"
        )
    tied, outer_tied = text.get("tie_word_embeddings"), config.get("tie_word_embeddings")
    if None not in (tied, outer_tied) and tied != outer_tied:
        raise ValueError(
            f"config.json has tie_word_embeddings {short_repr(outer_tied)} and, in text_config, "
            f"{short_repr(tied)}; they must be equal"
        )
    dropped = ("text_config", *VISION_FIELDS)
    outer = {name: value for name, value in config.items() if name not in dropped}
    inner = {name: value for name, value in text.items() if value is not None}
    return {**outer, **inner, "model_type": family}


def invalid_field(name: str, value: Any, expected: object) -> ValueError:
    """Returns an error that states a field's invalid value and what was expected."""
    return ValueError(f"config.json has {name} {short_repr(value)}, expected {expected}")


def required_field(fields: Fields, name: str) -> Any:
    """Value of a field; ValueError if it is missing."""
    if name not in fields:
        raise ValueError(f"config.json has no {name}")
    return fields[name]


def positive_int(
    fields: Fields, name: str, default: int | None = None, most: float = MAX_INT32
) -> int:
    """Value of a positive integer field, at most `most`.

    `default` replaces a missing or null value; None makes the field required.
    """
    if default is not None and fields.get(name) is None:
        return default
    value = required_field(fields, name)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise invalid_field(name, value, "a positive integer")
    if value > most:
        raise invalid_field(name, value, f"at most {most}")
    return value


def non_negative_int(fields: Fields, name: str, default: int) -> int:
    """Value of a non-negative integer field; the default if missing or null."""
    value = default if fields.get(name) is None else fields[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise invalid_field(name, value, "a non-negative integer")
    return value


def positive_float(fields: Fields, name: str, default: float | None = None) -> float:
    """Value of a positive numeric field; see `positive_int`."""
    if default is not None and fields.get(name) is None:
        return default
    value = required_field(fields, name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < MAX_NUMBER:
        raise invalid_field(name, value, "a positive number")
    return value


def boolean(fields: Fields, name: str, default: bool = False) -> bool:
    """Value of a boolean field; the default if missing or null."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise invalid_field(name, value, "true or false")
    return value


def non_negative_ints(fields: Fields, name: str) -> list[int] | None:
    """Value of a list of non-negative integers; None if missing or null."""
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(x) is int and x >= 0 for x in value):
        raise invalid_field(name, value, "a list of non-negative integers")
    return value


def reject_unknown_fields(fields: Fields, known: set[str], where: str = "config.json") -> None:
    """Rejects unknown fields, unless their value is null, false or empty."""
    for name, value in fields.items():
        if name not in known and value not in (None, False, [], {}, ""):
            raise ValueError(
                f"{where} has an unknown field, {name} {short_repr(value)}; it is rejected because "
                "it may change what the model computes"
            )
