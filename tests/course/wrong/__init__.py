"""Wrong solutions: small, typical mistakes that the tests must catch.

`pdm run mutants` applies one at random and offers descriptions to choose from. Each week's `.diff`
file has a heading per block of a task, such as `== 1.1.1 softmax`, and below it the mistakes: a
description, the text to find (`- `), which occurs once in the solution's block, and its replacement
(`+ `; none for a deletion).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


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


SECTION = re.compile(r"^== (.+)\n((?:(?!== ).*\n)+)", re.MULTILINE)
MISTAKE = re.compile(
    r"^(.+?)(?: \(noticed by (\d\.\d\.\d)\))?\n((?:-(?: .*)?\n)+)((?:\+(?: .*)?\n)*)", re.MULTILINE
)


def parse(diff: str) -> Iterator[Wrong]:
    """Reads the mistakes of a `.diff` file."""
    for block, mistakes in SECTION.findall(diff):
        for what, noticed_by, *texts in MISTAKE.findall(mistakes):
            find, replace = ("\n".join(line[2:] for line in t.splitlines()) for t in texts)
            yield Wrong(block, what, find, replace, noticed_by or None)


WRONG = [
    wrong
    for path in sorted(Path(__file__).parent.glob("week_*.diff"))
    for wrong in parse(path.read_text(encoding="utf-8"))
]
