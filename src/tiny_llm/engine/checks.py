"""Arguments as callers give them, checked and in the form that the engine works with."""

import math
from numbers import Real
from typing import Any

from ..errors import UserError, check_whole


def as_plain(value: Any) -> Any:
    """An array of any library as a list; any other value unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def check_range(
    name: str, value: Any, low: float, high: float, allowed: str, above: bool = False
) -> None:
    """Refuses a value that is not a finite number in [low, high], or in (low, high] if `above`.

    Args:
        name: of the argument, for the sentence.
        value: what was given.
        low, high: the bounds.
        allowed: the range in words, for the sentence.
        above: whether `low` itself is refused.

    Raises:
        UserError: the value is refused.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not low <= value <= high or (above and value == low):
        raise UserError(f"{name} is {value!r}; it must be {allowed}.")


def checked_seed(seed: Any) -> int:
    """A seed as Python's own integer, because the arithmetic with it goes beyond 64 bits.

    Raises:
        UserError: it is not a whole number in [0, 2**64).
    """
    check_whole("seed", seed, 0)
    if seed >= 2**64:
        raise UserError(f"seed is {seed}; it must be below 2**64.")
    return int(seed)
