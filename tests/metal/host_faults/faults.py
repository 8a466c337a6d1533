"""Seeded faults in host code: original source texts and their faulty replacements.

Headings of `faults.diff` name the operation whose calls expose the faults, and the file. A text
that ends with `;` is a statement, a text that starts with `.` initializes a struct's field, and any
other text is an expression. A description ends with the expected report, unless the result differs
from the CPU's.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.substitutions import read_substitutions


@dataclass(frozen=True)
class Fault:
    """Seeded fault.

    Attributes:
        operation: operation whose calls expose the fault.
        file: path relative to src/extensions.
        right: original text, found exactly once.
        message: text that the emulated GPU's report must contain.
    """

    name: str
    operation: str
    file: str
    right: str
    wrong: str
    message: str


def read_faults() -> Iterator[Fault]:
    path = Path(__file__).with_suffix(".diff")
    for heading, description, right, wrong in read_substitutions(path):
        operation, file = heading.split(" in ")
        name, _, report = description.removesuffix(")").partition(" (reports ")
        message = {"": "differs", "any": ""}.get(report, report)
        yield Fault(name, operation, file, right, wrong, message)


FAULTS = list(read_faults())
