"""Validation and conversion of arguments."""

import math
from contextlib import suppress
from numbers import Integral, Real
from typing import Any

from ...errors import UserError, check_int, short_repr


def array_to_list(value: Any) -> Any:
    """Converts an array from any library to a list; returns other values unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def validate_number(
    name: str, value: Any, low: float, high: float, allowed: str, above: bool = False
) -> float:
    """Converts a finite number in [low, high] to a Python float.

    Fractions and NumPy scalars are accepted; MLX takes only Python numbers.

    Args:
        name: argument name, for the error message.
        value: argument value.
        low, high: bounds.
        allowed: the range in words, for the error message.
        above: whether the lower bound is exclusive.

    Raises:
        UserError: the value is not a number in the range.
    """
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # an integer of hundreds of digits
            number = float(value)
    if not (math.isfinite(number) and low <= number <= high) or (above and number <= low):
        raise UserError(f"{name} must be {allowed}, got {short_repr(value)}.")
    return number


def validate_bool(name: str, value: Any) -> None:
    """Checks that a value is a bool.

    Raises:
        UserError: the value is not a bool.
    """
    if not isinstance(value, bool):
        raise UserError(f"{name} must be True or False, got {short_repr(value)}.")


def is_token_id(token: Any) -> bool:
    """Whether a value is a non-negative integer, from Python or another library."""
    return isinstance(token, Integral) and not isinstance(token, bool) and int(token) >= 0


def validate_seed(seed: Any) -> int:
    """Converts a seed to a Python int, because seed arithmetic exceeds 64 bits.

    Raises:
        UserError: the seed is not an integer in [0, 2**64).
    """
    check_int("seed", seed, 0)
    if seed >= 2**64:
        raise UserError(f"seed must be below 2**64, got {short_repr(seed)}.")
    return int(seed)
