"""`pdm run mutants`: mutant selection, displayed symptoms and scoring."""

import pytest
from rich.console import Console

from tools.course import history, mutants
from tools.course.runner import Outcome
from tools.course.tasks import day_of
from tools.course.wrong_solutions import INTERPRETED, suffix_of

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
    assert mutants.main(["--day", "2.1", "--answer", right]) == 0
    assert "you named 2 of 2" in capsys.readouterr().out, "a new round must ask new questions"
    kept = [(entry["named"], entry["seed"]) for entry in history.entries(tree, "mutants")]
    assert kept == [(1, 0), (2, 1)]
    assert mutants.main([]) == 0
    assert "2 of 2" in capsys.readouterr().out


@pytest.mark.slow
def test_mutant_is_detected():
    (question,) = mutants.questions(mutants.mistakes_of(day_of(1, 1)), 1, 3)
    ((_, outcomes),) = mutants.test_failures([question], Console(quiet=True))
    assert any(outcome.passed is False for outcome in outcomes)
    assert any(outcome.passed for outcome in outcomes), "some tests must pass despite the mutant"
