"""Exceptions that a caller can act on: a user's mistake, missing pages, a task to be written.

Checks that several modules share are here too. Each raises `UserError`.
"""

from collections.abc import Iterable
from numbers import Integral
from typing import Any


class UserError(ValueError):
    """A user's mistake, in one sentence: what was given, what is allowed, what to do.

    Commands print the sentence and exit with status 2; they never show a traceback for it.
    """


class QueueFullError(UserError):
    """The engine has as many requests as it may have; the same request fits later."""


class OutOfPagesError(RuntimeError):
    """There are fewer pages of keys and values than were asked for.

    Nothing was changed when it is raised: a scheduler can free pages and try again.
    """


class TaskNotImplemented(NotImplementedError):  # noqa: N818 - it is not a mistake
    """Stands in the learner's tree where a task of the course is still to be written."""


def check_int(name: str, value: Any, least: int, hint: str = "") -> None:
    """Refuses a value that is not a whole number, or is below `least`.

    Raises:
        UserError: the value is refused.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise UserError(
            f"{name} is {short_repr(value)}; it must be a whole number ≥ {least}{hint}."
        )


def check_token_ids(what: str, token_ids: Iterable[int], vocab_size: int) -> None:
    """Refuses token ids that the model does not have.

    An embedding looks such an id up in memory beyond its table.

    Args:
        what: where the tokens are, for the sentence: "the prompt".
        token_ids: whole numbers.
        vocab_size: V.

    Raises:
        UserError: an id is below 0, or V and above.
    """
    for token in token_ids:
        if not 0 <= token < vocab_size:
            raise UserError(
                f"{what} has the token {short_repr(token)}; the model's are 0 to {vocab_size - 1}."
            )


def short_repr(value: Any) -> str:
    """A value on one line of at most 60 characters, for a message."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python writes integers of up to 4300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}…"
