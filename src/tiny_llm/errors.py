"""Exceptions that a caller can act on: a user's mistake, missing pages, a task to be written."""


class UserError(ValueError):
    """A user's mistake, in one sentence: what was given, what is allowed, what to do.

    Commands print the sentence and exit with status 2; they never show a traceback for it.
    """


class OutOfPagesError(RuntimeError):
    """There are fewer pages of keys and values than were asked for.

    Nothing was changed when it is raised: a scheduler can free pages and try again.
    """


class YourTurn(NotImplementedError):  # noqa: N818 - it is not a mistake
    """Stands in the learner's tree where a task of the course is still to be written."""
