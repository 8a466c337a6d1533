"""Arguments as callers give them, checked and in the form that the engine works with."""

import math
from contextlib import suppress
from numbers import Integral, Real
from typing import Any

from ...errors import UserError, check_int, short_repr


def array_to_list(value: Any) -> Any:
    """An array of any library as a list; any other value unchanged."""
    return value.tolist() if hasattr(value, "tolist") else value


def validate_number(
    name: str, value: Any, low: float, high: float, allowed: str, above: bool = False
) -> float:
    """A finite number in [low, high], or in (low, high] if `above`, as Python's own float.

    Fractions and NumPy's numbers are numbers too, but MLX takes only Python's.

    Args:
        name: of the argument, for the sentence.
        value: what was given.
        low, high: the bounds.
        allowed: the range in words, for the sentence.
        above: whether `low` itself is refused.

    Raises:
        UserError: the value is refused.
    """
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # an integer of hundreds of digits
            number = float(value)
    if not (math.isfinite(number) and low <= number <= high) or (above and number <= low):
        raise UserError(f"{name} is {short_repr(value)}; it must be {allowed}.")
    return number


def validate_bool(name: str, value: Any) -> None:
    """Refuses what is neither True nor False.

    Raises:
        UserError: the value is refused.
    """
    if not isinstance(value, bool):
        raise UserError(f"{name} is {short_repr(value)}; it must be True or False.")


def is_token_id(token: Any) -> bool:
    """Whether a value is a whole number ≥ 0, from Python or another library."""
    return isinstance(token, Integral) and not isinstance(token, bool) and int(token) >= 0


def validate_seed(seed: Any) -> int:
    """A seed as Python's own integer, because the arithmetic with it goes beyond 64 bits.

    Raises:
        UserError: it is not a whole number in [0, 2**64).
    """
    check_int("seed", seed, 0)
    if seed >= 2**64:
        raise UserError(f"seed is {short_repr(seed)}; it must be below 2**64.")
    return int(seed)
