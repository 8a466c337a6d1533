"""`pdm run mutants`: mutant selection, displayed symptoms and scoring."""

import io

import pytest
from rich.console import Console

from tests.course.wrong import WRONG
from tools.course import history, mutants
from tools.course.runner import Outcome
from tools.course.tasks import DAYS, day_of, day_of_task
from tools.course.tree import EXTENSION
from tools.course.wrong_solutions import INTERPRETED, suffix_of, write_complete_tree

DAY = day_of(2, 1)
FAILS = [
    Outcome("tests/x.py::test_task_1_a[3]", False, "expected 1, got 2"),
    Outcome("tests/x.py::test_task_1_a[4]", False, "expected 5, got 6"),
    Outcome("tests/x.py::test_task_1_b", False, "[red] is no colour"),
    Outcome("tests/x.py::test_task_1_c", True, ""),
]


@pytest.fixture
def without_tests(monkeypatch):
    """Replaces the test run with fixed outcomes."""
    monkeypatch.setattr(
        mutants, "test_failures", lambda round_of, console: ((each, FAILS) for each in round_of)
    )


def answers_of(day: str, seed: int, count: int) -> list[int]:
    chosen = mutants.questions(mutants.mistakes_of(day_of(*map(int, day.split(".")))), count, seed)
    return [choices.index(made) + 1 for made, choices in chosen]


def test_every_day_has_questions():
    for day in DAYS:
        assert sum(day_of_task(wrong.task) is day for wrong in WRONG) >= 2


def test_questions_are_reproducible_by_seed():
    mistakes = mutants.mistakes_of(DAY)
    first = mutants.questions(mistakes, 4, 1)
    assert first == mutants.questions(mistakes, 4, 1)
    assert first != mutants.questions(mistakes, 4, 2)
    every = mutants.questions(mutants.mistakes_of(day_of(2, 2)), 100, 1)
    compiled = [suffix_of(made) not in INTERPRETED for made, _ in every]
    assert compiled == sorted(compiled), "compiled mutants must come last"
    assert len(mutants.questions(mistakes, 1000, 1)) == len(mistakes)
    for made, choices in mutants.questions(mistakes, 1000, 1):
        assert made in choices
        texts = [wrong.what for wrong in choices]
        assert len(set(texts)) == len(texts) == mutants.CHOICES, "choices must be distinct"


def test_failed_build_of_the_solution_is_reported(monkeypatch):
    compiled = next(wrong for wrong in WRONG if suffix_of(wrong) not in INTERPRETED)
    monkeypatch.setattr(mutants, "write_complete_tree", lambda tree: None)
    monkeypatch.setattr(mutants, "build_tree", lambda *args: "cmake: no compiler")
    with pytest.raises(SystemExit, match="does not build:\ncmake: no compiler"):
        next(mutants.test_failures([(compiled, [])], Console(file=io.StringIO())))


def test_round_score_is_stored(tree, capsys, without_tests):
    first, second = answers_of("2.1", 0, 2)
    wrong = second % mutants.CHOICES + 1
    assert mutants.main(["--day", "2.1", "--answer", f"{first},{wrong}"]) == 0
    output = capsys.readouterr().out
    assert "you named 1 of 2" in output
    assert "3 of 4 tests fail: test_task_1_a, test_task_1_b" in output
    assert "these pass: test_task_1_c" in output
    assert "expected 1, got 2" in output
    assert "expected 5" not in output, "expected one message per test function"
    assert "[red] is no colour" in output
    right = ",".join(map(str, answers_of("2.1", 1, 2)))
    assert mutants.main(["--day", "2.1", "--answer", right]) == 0, (
        "a new round must ask new questions"
    )
    assert "you named 2 of 2" in capsys.readouterr().out
    kept = [(entry["named"], entry["seed"]) for entry in history.entries(tree, "mutants")]
    assert kept == [(1, 0), (2, 1)]
    assert mutants.main([]) == 0
    assert "2 of 2" in capsys.readouterr().out


def test_omitted_tests_are_reported():
    names = [f"test_task_1_{letter}" for letter in "abcdefghij"]
    outcomes = [Outcome(f"tests/x.py::{name}", name < names[5], "") for name in names]
    output = io.StringIO()
    mutants.show_symptoms(outcomes, Console(file=output, width=1000))
    assert f"5 of 10 tests fail: {', '.join(names[5:])}\n" in output.getvalue()
    assert f"these pass: {', '.join(names[:5])}\n" in output.getvalue()
    many = [Outcome(f"tests/x.py::test_task_1_{n:02}", True, "") for n in range(10)]
    mutants.show_symptoms(many, Console(file=output, width=1000))
    assert "test_task_1_06, test_task_1_07 and 2 more\n" in output.getvalue()


def test_keyboard_input(tree, monkeypatch, capsys, without_tests):
    (right,) = answers_of("2.1", 5, 1)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"what?\n0\n6\n{right}\nq\n"))
    assert mutants.main(["--day", "2.1", "--seed", "5", "--count", "3"]) == 0
    assert "you named 1 of 1" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert mutants.main(["--day", "2.1"]) == 0
    assert "you named" not in capsys.readouterr().out
    assert len(history.entries(tree, "mutants")) == 1, "a round without answers must not be stored"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--day", "9.9"], "unknown day 9.9"),
        (["--day", "two"], "--day must be week.day, such as 2.4, got 'two'"),
        (["--day", "2.1", "--count", "0"], "--count must be at least 1, got 0"),
        (["--day", "2.1", "--answer", "b"], "must be numbers such as 2,1,4, got 'b'"),
    ],
)
def test_invalid_arguments(argv, message, capsys):
    with pytest.raises(SystemExit):
        mutants.main(argv)
    assert message in capsys.readouterr().err


def test_metal_questions_need_clang(monkeypatch):
    monkeypatch.setattr(mutants, "has_clang", lambda: False)
    every = [wrong for wrong in WRONG if day_of_task(wrong.task) is day_of(2, 3)]
    assert len(mutants.mistakes_of(day_of(2, 3))) < len(every)


@pytest.mark.slow
def test_mutant_is_detected():
    (question,) = mutants.questions(mutants.mistakes_of(day_of(1, 1)), 1, 3)
    ((_, outcomes),) = mutants.test_failures([question], Console(quiet=True))
    assert any(outcome.passed is False for outcome in outcomes)
    assert any(outcome.passed for outcome in outcomes), "some tests must pass despite the mutant"


@pytest.mark.slow
def test_unchanged_files_are_not_recompiled(tmp_path):
    write_complete_tree(tmp_path / "mine")
    files = [path for path in (tmp_path / "mine" / EXTENSION).rglob("*") if path.is_file()]
    times = [path.stat().st_mtime_ns for path in files]
    write_complete_tree(tmp_path / "mine")
    assert [path.stat().st_mtime_ns for path in files] == times
