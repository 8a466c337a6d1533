"""Wrong solutions: small, typical mistakes that the tests must catch.

`pdm run mutants` applies one at random and offers descriptions to choose from. Headings of a week's
`.diff` file are labels of tasks' blocks, such as "1.1.1 softmax". The text to find occurs once in
the solution's block.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.substitutions import read_substitutions


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


def read_mistakes() -> Iterator[Wrong]:
    for path in sorted(Path(__file__).parent.glob("week_*.diff")):
        for block, description, find, replace in read_substitutions(path):
            what, _, noticed_by = description.partition(" (noticed by ")
            yield Wrong(block, what, find, replace, noticed_by.removesuffix(")") or None)


WRONG = list(read_mistakes())
