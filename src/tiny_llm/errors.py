"""Exceptions that callers act on: what a user can mend, and what a scheduler can."""


class UserError(ValueError):
    """A mistake in what was asked for, told in one sentence: what was given, what is allowed.

    Commands print the sentence and exit with status 2; they never show a traceback for it.
    """


class OutOfPagesError(RuntimeError):
    """There are fewer pages of keys and values than were asked for.

    Nothing was changed when it is raised: a scheduler can free pages and try again.
    """


class YourTurn(NotImplementedError):  # noqa: N818 - it is no mistake
    """Stands in the learner's tree where a task of the course is still to be written."""
