"""Wrong solutions that learners write: small changes of the solution that tests must catch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Wrong:
    """One mistake.

    Attributes:
        block: where it is made: the label of a task's block, such as "1.1.1 softmax".
        what: the mistake, in a few words.
        find: a piece of the solution's block, which occurs there once.
        replace: what stands there instead.
    """

    block: str
    what: str
    find: str
    replace: str

    @property
    def task(self) -> str:
        """The task whose tests must fail."""
        return self.block.split(" ")[0]

    def __str__(self) -> str:
        return f"{self.block}: {self.what}"
