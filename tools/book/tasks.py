"""Consistency of tasks between chapters, tests and the course's table.

Chapters have headings `## Task K…`; tests are functions `test_task_K_…` in the file that
`pdm run test --week N --day M` runs; the table is tools/course/tasks.py.
"""

import ast
import re
from pathlib import Path

from tools.course.tasks import TASKS
from tools.course.tasks import day_of as course_day

from . import ROOT, BookError
from .chapters import chapters, day_of, tasks_of, where

# Tasks in the course's table without tests yet; remove a task once it has tests.
PENDING: frozenset[str] = frozenset()

COMMAND = re.compile(r"pdm run test --week (\d) --day (\d)(?: -- -k task_(\d+))?\s*$")


def tasks_of_tests(tests: Path = ROOT / "tests") -> set[str]:
    """Ids of tasks that have tests, such as "1.3.2"."""
    found = set()
    for file in tests.glob("week_*/test_day_*.py"):
        day = f"{file.parent.name[5:]}.{file.stem[9:]}"
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                task = re.match(r"test_task_(\d+)_", node.name)
                if task:
                    found.add(f"{day}.{task[1]}")
    return found


def check_tasks(tested: set[str]) -> list[str]:
    """Differences between table, chapters and tests, one sentence each."""
    errors: list[str] = []
    described: set[str] = set()
    for chapter in chapters():
        errors += _wrong_commands(chapter, tested | PENDING)
        day = day_of(chapter)
        if day is None:
            continue
        text = chapter.read_text(encoding="utf-8")
        for task, line in tasks_of(chapter).items():
            task_id = f"{course_day(*day).id}.{task}"
            if task_id in described:
                errors.append(f"{where(chapter, line)}: task {task_id} already has a chapter")
            if task_id not in TASKS:
                errors.append(f"{where(chapter, line)}: the course has no task {task_id}")
            described.add(task_id)
            command = f"pdm run test --week {day[0]} --day {day[1]} -- -k task_{task}"
            if command not in text:
                errors.append(f"{where(chapter, line)}: the command `{command}` is missing")
    errors += [f"task {task} has no chapter" for task in sorted(TASKS.keys() - described)]
    errors += [f"task {task} has no test" for task in sorted(TASKS.keys() - tested - PENDING)]
    errors += [
        f"task {task} has tests; remove it from PENDING" for task in sorted(PENDING & tested)
    ]
    return errors


def _wrong_commands(chapter: Path, known: set[str]) -> list[str]:
    """Test commands of a chapter that would select no test, one sentence each."""
    errors = []
    for number, line in enumerate(chapter.read_text(encoding="utf-8").splitlines(), start=1):
        command = COMMAND.search(line)
        if command:
            week, day, task = command.groups()
            try:
                prefix = f"{course_day(int(week), int(day)).id}.{task or ''}"
            except LookupError:
                prefix = "no day"
            if not any(task_id == prefix or not task for task_id in known if prefix in task_id):
                errors.append(f"{where(chapter, number)}: `{command[0].strip()}` runs no test")
    return errors


def check_all() -> None:
    """Compares table, chapters and tests; a `BookError` lists all differences."""
    errors = check_tasks(tasks_of_tests())
    if errors:
        raise BookError("\n".join(errors))
