"""Public exceptions and shared argument checks."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any


class UserError(ValueError):
    """Invalid user input. The message is one sentence: given value, allowed values, fix.

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
    """Rejects non-integers and values below `minimum`."""
    is_int = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_int or value < minimum:
        bound = f"at least {minimum}" if is_int else f"an integer of at least {minimum}"
        raise UserError(f"{name} must be {bound}{hint}, got {short_repr(value)}.")


def check_token_ids(what: str, token_ids: Iterable[int], vocab_size: int) -> None:
    """Rejects token ids outside the vocabulary.

    An embedding lookup would read out of bounds.

    Args:
        what: source of the tokens, for the message, e.g. "the prompt".

    Raises:
        UserError: an id is negative or at least V.
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


def summarize(names: Sequence[str], limit: int = 4) -> str:
    """Formats the first names of a list and the number of the others."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(" ".join(name.split())[:60] for name in names[:limit]) + more
