"""`pdm run start-course --lines`: lines that a learner reads and writes on each day."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .markers import Block, all_blocks, find_blocks
from .starter import starter_text
from .tasks import DAYS, Day, day_of_task
from .tree import ROOT


@dataclass(frozen=True)
class DayLines:
    """A day's lines, without empty ones.

    Attributes:
        files: files with the day's tasks, relative to the repository.
        to_read: lines of these files in the starter, without the blocks of this day and of earlier
            ones, whose code is the learner's.
        to_write: lines of the solution in the day's blocks.
    """

    day: Day
    files: tuple[Path, ...]
    to_read: int
    to_write: int

    @property
    def read_per_10(self) -> float:
        """Lines to read for each 10 to write."""
        return 10 * self.to_read / self.to_write


def lines_by_day() -> list[DayLines]:
    """Counts the lines of every day."""
    blocks = all_blocks(ROOT / "src").values()
    counted = []
    for day in DAYS:
        own = [path for path, block in blocks if _day(block) == day]
        files = tuple(dict.fromkeys(path.relative_to(ROOT) for path in own))
        to_read = sum(_lines_to_read(file, day) for file in files)
        to_write = sum(_lines_to_write(file, day) for file in files)
        counted.append(DayLines(day, files, to_read, to_write))
    return counted


def table() -> Iterator[str]:
    """Yields the table's lines: a row per day."""
    yield "day  files  lines to read  to write  to read per 10 to write"
    for row in lines_by_day():
        yield (
            f"{row.day.id}  {len(row.files):5}  {row.to_read:13}  {row.to_write:8}  "
            f"{row.read_per_10:23.0f}"
        )


def _lines_to_read(file: Path, day: Day) -> int:
    text = starter_text((ROOT / file).read_text(encoding="utf-8"), file)
    lines: list[str] = text.split("\n")
    for block in find_blocks(text, file):
        if DAYS.index(_day(block)) <= DAYS.index(day):
            first, end = block.start - 1, block.end + 1  # with the markers
            lines[first:end] = [""] * (end - first)
    return sum(bool(line.strip()) for line in lines)


def _lines_to_write(file: Path, day: Day) -> int:
    text = (ROOT / file).read_text(encoding="utf-8")
    lines = text.split("\n")
    return sum(
        bool(line.strip())
        for block in find_blocks(text, file)
        if block.task is not None and _day(block) == day
        for line in lines[block.start : block.end]
    )


def _day(block: Block) -> Day:
    assert block.task is not None
    return day_of_task(block.task)
