"""The exception for what a user can mend: a flag, a file, a model's name."""


class UserError(ValueError):
    """A mistake in what was asked for, told in one sentence: what was given, what is allowed.

    Commands print the sentence and exit with status 2; they never show a traceback for it.
    """


class YourTurn(NotImplementedError):  # noqa: N818 - it is no mistake
    """Stands in the learner's tree where a task of the course is still to be written."""
