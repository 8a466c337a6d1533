"""The tasks of the chapters beside those of the tests: each must have the other.

A task of a chapter is a heading `## Task K…`; one of the tests is a function `test_task_K_…` in the
file that `pdm run test --week N --day M` runs.
"""

import ast
import re
from pathlib import Path

from . import ROOT, BookError
from .chapters import chapters, day_of, tasks_of, where

# A chapter of two days answers to either number (tools/run_tests.py): (week, second) -> first.
SECOND_DAYS = {(2, 3): 2, (2, 5): 4, (2, 7): 6}

Task = tuple[int, int, int]  # week, day, task
COMMAND = re.compile(r"pdm run test --week (\d) --day (\d)(?: -- -k task_(\d+))?\s*$")


def tasks_of_tests(tests: Path = ROOT / "tests") -> set[Task]:
    """All (week, day, task) for which there is a test."""
    found = set()
    for file in tests.glob("week_*/test_day_*.py"):
        week, day = int(file.parent.name[5:]), int(file.stem[9:])
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                task = re.match(r"test_task_(\d+)_", node.name)
                if task:
                    found.add((week, day, int(task[1])))
    return found


def first_day(week: int, day: int) -> int:
    """The day whose tests a day answers to."""
    return SECOND_DAYS.get((week, day), day)


def check_tasks() -> list[str]:
    """What chapters and tests do not have in common, one sentence each."""
    tested = tasks_of_tests()
    errors, described = [], set()
    for chapter in chapters():
        errors += _wrong_commands(chapter, tested)
        day = day_of(chapter)
        if day is None:
            continue
        commands = chapter.read_text(encoding="utf-8")
        for task, line in tasks_of(chapter).items():
            key = (day[0], first_day(*day), task)
            if key in described:
                errors.append(f"{where(chapter, line)}: task {task} has a chapter already")
            described.add(key)
            if key not in tested:
                errors.append(f"{where(chapter, line)}: task {task} has no test")
            command = f"pdm run test --week {day[0]} --day {day[1]} -- -k task_{task}"
            if command not in commands:
                errors.append(f"{where(chapter, line)}: the command `{command}` is missing")
    for week, day_number, task in sorted(tested - described):
        errors.append(f"tests/week_{week}/test_day_{day_number}.py: task {task} has no chapter")
    return errors


def _wrong_commands(chapter: Path, tested: set[Task]) -> list[str]:
    """Commands of a chapter that would run no test."""
    errors = []
    for number, line in enumerate(chapter.read_text(encoding="utf-8").splitlines(), start=1):
        command = COMMAND.search(line)
        if command:
            week, day, task = (int(part) if part else None for part in command.groups())
            assert week is not None
            assert day is not None
            key = (week, first_day(week, day))
            if not any(known[:2] == key and task in (None, known[2]) for known in tested):
                errors.append(f"{where(chapter, number)}: `{command[0].strip()}` runs no test")
    return errors


def check_all() -> None:
    """Raises what `check_tasks` found.

    Raises:
        BookError: anything.
    """
    errors = check_tasks()
    if errors:
        raise BookError("\n".join(errors))
