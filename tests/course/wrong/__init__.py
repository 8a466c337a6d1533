"""Wrong solutions that learners write: small changes of the solution that tests must catch.

`pdm run mutants` hides them, and shows `what` as an answer to choose.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Wrong:
    """One mistake.

    Attributes:
        block: where it is made: the label of a task's block, such as "1.1.1 softmax".
        what: the mistake, in a few words.
        find: a piece of the solution's block, which occurs there once.
        replace: what stands there instead.
        noticed_by: the task whose tests must fail, if it is a later one: "3.3.4".
    """

    block: str
    what: str
    find: str
    replace: str
    noticed_by: str | None = None

    @property
    def task(self) -> str:
        """The task in which it is made."""
        return self.block.split(" ")[0]

    @property
    def tested_by(self) -> str:
        """The task whose tests must fail."""
        return self.noticed_by or self.task

    def __str__(self) -> str:
        return f"{self.block}: {self.what}"
