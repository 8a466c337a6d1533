"""Course markers, the generated starter and the task table."""

import ast
import re

import pytest

from tests.course.support import HAVE_CODE
from tools.course.markers import MarkerError, all_blocks, find_blocks
from tools.course.reading import lines_by_day
from tools.course.runner import task_of_test
from tools.course.starter import starter_text
from tools.course.tasks import (
    DAYS,
    TASKS,
    day_of,
    day_of_task,
    day_with_task,
    unwritten_message,
    with_needs,
)
from tools.course.tree import EXTENSION, PACKAGE, ROOT, starter_files


def test_tasks_and_marked_code_correspond():
    assert set(TASKS) == HAVE_CODE, "markers in src/ and the table in tasks.py differ"


@pytest.mark.parametrize("day", DAYS, ids=lambda day: day.id)
def test_tasks_and_tests_correspond(day):
    functions = ast.parse((ROOT / day.test_file).read_text(encoding="utf-8")).body
    names = [getattr(node, "name", "") for node in functions]
    tests = [name for name in names if name.startswith("test_")]
    tested = {task_of_test(f"{day.test_file}::{name}") for name in tests}
    tasks = {task.id for task in day.tasks}
    assert tested == tasks, f"{day.test_file} and the table in tasks.py differ"


def test_every_test_file_belongs_to_a_day():
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").glob("week_*/test_*.py")}
    assert files == {day.test_file for day in DAYS}


def test_days_and_tasks_are_numbered_in_order():
    ids = [tuple(map(int, task.split("."))) for task in TASKS]
    assert ids == sorted(ids)
    for day in DAYS:
        first = day.tasks[0].number
        assert first in (0, 1) or f"{day.week}.{day.day - 1}.{first - 1}" in TASKS, (
            "only the second day of a pair may continue the first day's task numbers"
        )
        assert [task.number for task in day.tasks] == [first + n for n in range(len(day.tasks))]
        assert all(day_of_task(task.id) is day for task in day.tasks)
        assert day_of(day.week, day.day) is day
    for task in TASKS.values():
        assert set(task.needs) <= TASKS.keys()


def test_day_titles_match_chapters():
    for day in DAYS:
        page = ROOT / f"book/pages/week{day.week}/day{day.day}.md"
        assert f"\n# {day.chapter}\n" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("requested", "number", "expected"),
    [
        ("2.2", 1, "2.2"),
        ("2.2", 3, "2.3"),
        ("2.7", 2, "2.6"),
        ("2.7", 4, "2.7"),
        ("2.2", 9, "2.2"),
        ("2.3", 1, "2.2"),
        ("2.4", 3, "2.5"),
        ("1.1", 3, "1.1"),
    ],
)
def test_day_pairs_share_task_numbers(requested, number, expected):
    week, day = map(int, requested.split("."))
    assert day_with_task(day_of(week, day), number).id == expected


def test_dependencies_are_transitive_and_may_be_cyclic():
    assert with_needs({"3.5.2"}) == {"3.5.1", "3.5.2"}
    assert with_needs({"2.7.4"}) == {"2.7.4", "2.7.5"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# [task 1.1.1]\n", r"here.py:1: \[task 1.1.1\] is never closed"),
        ("# [/task 1.1.1]\n", r"does not match; no block is open"),
        ("# [task 1.1.1]\n# [/task 1.1.2]\n", r"here.py:2: .* does not match; \[task 1.1.1\] is"),
        ("# [task 1.1.1]\n# [task 1.1.2]\n", r"begins inside \[task 1.1.1\] of line 1"),
        ("# [task 1.1.9]\n# [/task 1.1.9]\n", r"unknown task 1.1.9"),
        ("# [task 1.1]\n# [/task 1.1]\n", "must have the form"),
        ("# [task 1.1.1 Big Name]\n# [/task 1.1.1 Big Name]\n", "must have the form"),
        ("x = 1  # [task 1.1.1]\n", "a marker must be a comment on its own line"),
        ("# [ task 1.1.1]\n", "a marker must be a comment on its own line"),
        ("# [solution only]\n", r"\[solution only\] is never closed"),
    ],
)
def test_invalid_markers(text, message):
    with pytest.raises(MarkerError, match=message):
        find_blocks(text, "here.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# [task 1.1.1]\nx = 1\n# [/task 1.1.1]\n", "is not inside a function"),
        ("def f():\n    # [task 1.1.1]\n    y = (1 +\n    # [/task 1.1.1]\n    1)\n", "splits a"),
    ],
)
def test_blocks_must_be_function_statements(tmp_path, text, message):
    with pytest.raises(MarkerError, match=message):
        starter_text("import x\n\n" + text, tmp_path / "here.py")


@pytest.fixture(scope="module")
def starter():
    return starter_files(ROOT / "mine")


PLACEHOLDERS = ("raise TaskNotImplemented(", "throw std::runtime_error(")
PLACEHOLDERS += ("message(FATAL_ERROR", "#error")


def test_starter_has_all_markers_and_no_solution_lines(starter, tmp_path):
    for path, text in starter.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    solution, learners = all_blocks(ROOT / "src"), all_blocks(tmp_path / "src")
    assert solution.keys() == learners.keys()
    for label, (path, block) in learners.items():
        lines = path.read_text(encoding="utf-8").split("\n")[block.start : block.end]
        block_message = " ".join(re.findall(r'(?:"|#error )([^"]*)', "\n".join(lines)))
        if path.suffix != ".metal":
            named = unwritten_message(block.task, "X").split(": ")[0]
            assert named in " ".join(block_message.split()), label
            assert lines[0].strip().partition(" week")[0] in PLACEHOLDERS, label


def test_starter_imports_its_error_once(starter):
    for path, text in starter.items():
        count = len(re.findall(r"^from .* import .*\bTaskNotImplemented\b", text, re.MULTILINE))
        assert count <= 1, f"{path} imports TaskNotImplemented {count} times"
        assert count or path.suffix != ".py" or "raise TaskNotImplemented(" not in text, path


def test_starter_keeps_signatures_and_docstrings(starter):
    def outline(text: str) -> list[tuple[str, str, str | None]]:
        return [
            (node.name, ast.unparse(node.args), ast.get_docstring(node))
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef)
        ]

    files = [path for path in starter if PACKAGE in path.parents and path.name != "__init__.py"]
    assert len(files) >= 13
    for path in files:
        solution = outline((ROOT / path).read_text(encoding="utf-8"))
        kept = outline(starter[path])
        # The starter lacks functions that are defined inside a task's block.
        assert [entry for entry in solution if entry in kept] == kept


def test_days_of_weeks_1_to_3_have_at_most_120_lines_to_read_per_10_to_write():
    above = [row for row in lines_by_day() if row.day.week <= 3 and row.read_per_10 > 120]
    assert not above, "move what these days do not need to files without their tasks"


def test_solution_only_files_are_not_in_the_starter(starter):
    names = {path.name for path in starter}
    assert "quantized_matmul_reference.cpp" in names
    assert not names & {"quantized_matmul_avx512.cpp", "flash_attention_simd.cpp"}
    text = starter[EXTENSION / "src/quantized_matmul/quantized_matmul_jobs.cpp"]
    assert "solution only" not in text
    assert "avx512" not in text
