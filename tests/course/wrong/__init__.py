"""Wrong solutions: small, typical mistakes that the tests must catch.

`pdm run mutants` applies one at random and offers descriptions to choose from.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Wrong:
    """A typical mistake in the solution of a task.

    Attributes:
        block: label of the task's block with the mistake, such as "1.1.1 softmax".
        what: short description, shown by `pdm run mutants`.
        find: text that occurs once in the solution's block.
        replace: its replacement.
        noticed_by: later task, such as "3.4.3", whose tests must fail instead of those of the
            block's task.
    """

    block: str
    what: str
    find: str
    replace: str
    noticed_by: str | None = None

    @property
    def task(self) -> str:
        return self.block.split(" ")[0]

    @property
    def tested_by(self) -> str:
        return self.noticed_by or self.task

    def __str__(self) -> str:
        return f"{self.block}: {self.what}"
