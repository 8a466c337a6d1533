"""Public exceptions and shared argument checks."""

import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from numbers import Integral, Real
from typing import Any


class UserError(ValueError):
    """Invalid user input; the message states what was given and what is allowed.

    Commands print the message without a traceback and exit with status 2.
    """


class QueueFullError(UserError):
    """The engine's request queue is full; the request can be retried later."""


class OutOfPagesError(RuntimeError):
    """Too few free KV cache pages.

    The failed call has no effect, so a scheduler can free pages and retry.
    """


class TaskNotImplemented(NotImplementedError):  # noqa: N818 - not a user error
    """Raised by a course task that the learner has not implemented yet."""


def check_int(name: str, value: Any, minimum: int, hint: str = "") -> None:
    """Rejects non-integers and values below `minimum`; `hint` extends the error."""
    is_int = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_int or value < minimum:
        bound = f"at least {minimum}" if is_int else f"an integer of at least {minimum}"
        raise UserError(f"{name} must be {bound}{hint}, got {short_repr(value)}.")


def array_to_list(value: Any) -> Any:
    """Converts an array from any library to a list; returns other values as is."""
    return value.tolist() if hasattr(value, "tolist") else value


def validate_number(
    name: str, value: Any, low: float, high: float, allowed: str, above: bool = False
) -> float:
    """Converts a finite number in [low, high] to a Python float.

    `Fraction` and NumPy scalars, which MLX does not accept, are converted as well.

    Args:
        allowed: the range in words, for the error message.
        above: whether the lower bound is exclusive.

    Raises:
        UserError: the value is not a number in the range.
    """
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):  # raised for an integer with hundreds of digits
            number = float(value)
    if not (math.isfinite(number) and low <= number <= high) or (above and number <= low):
        raise UserError(f"{name} must be {allowed}, got {short_repr(value)}.")
    return number


def validate_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise UserError(f"{name} must be True or False, got {short_repr(value)}.")


def is_token_id(token: Any) -> bool:
    """Whether a value is an integer ≥ 0: an int or a NumPy integer, but no bool."""
    return isinstance(token, Integral) and not isinstance(token, bool) and int(token) >= 0


def validate_seed(seed: Any) -> int:
    """Converts a seed to an int, because arithmetic on NumPy seeds may overflow.

    Raises:
        UserError: the seed is not an integer in [0, 2**64).
    """
    check_int("seed", seed, 0)
    if seed >= 2**64:
        raise UserError(f"seed must be below 2**64, got {short_repr(seed)}.")
    return int(seed)


def check_token_ids(what: str, token_ids: Iterable[int], vocab_size: int) -> None:
    """Rejects token ids that an embedding lookup would read out of bounds.

    Args:
        what: source of the tokens, for the message, e.g. "the prompt".

    Raises:
        UserError: an id is negative or at least `vocab_size`.
    """
    for token in token_ids:
        if not 0 <= token < vocab_size:
            raise UserError(
                f"token ids in {what} must be from 0 to {vocab_size - 1}, got {short_repr(token)}."
            )


def short_repr(value: Any) -> str:
    """Formats a value for a message: one line of at most 60 characters."""
    is_long = isinstance(value, str | bytes) and len(value) > 1000
    try:  # truncate first: `repr` of a long text may take megabytes
        text = " ".join(repr(value[:1000] if is_long else value).split())
    except ValueError:  # Python refuses to format integers of more than 4300 digits
        text = "an integer with thousands of digits"
    except RecursionError:
        text = "a deeply nested value"
    return text if len(text) <= 60 and not is_long else f"{text[:57]}…"


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_CONTROL_OR_SPACE = re.compile(rf"[\t\n\u2028\u2029]|{_CONTROL.pattern}")


def escape_control_characters(text: str, one_line: bool = False) -> str:
    """Escapes characters that control a terminal, and surrogates, which cannot be encoded.

    Args:
        one_line: whether to escape tabs, newlines and line separators as well.
    """
    pattern = _CONTROL_OR_SPACE if one_line else _CONTROL
    return pattern.sub(lambda match: ascii(match[0])[1:-1], text)


def summarize(names: Sequence[str], limit: int = 4) -> str:
    """Joins the first `limit` names and counts the rest: "a, b, c, d and 3 more"."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(" ".join(name.split())[:60] for name in names[:limit]) + more
