"""Week 7, day 5, optional: evaluation by outcome, with seeds and intervals."""

import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import assert_equal
from tests.week_7.support import total_is_12
from tiny_llm.agent import Agent, ScriptedModel, Tool, assistant
from tiny_llm.agent.evaluation import EvalTask, Result, case_seed, report, run_case, wilson_interval
from tiny_llm.errors import UserError

WRITE = {"properties": {"text": {"type": "string"}}, "required": ["text"]}


TASK = EvalTask("add", "Add 5 to the total.", total_is_12, {"total.txt": "7"})


def agent_factory(script: Callable[[Any, int], Any], max_steps: int = 3) -> Callable[[Path], Agent]:

    def make_agent(workspace: Path) -> Agent:
        def write(text: str) -> str:
            (workspace / "total.txt").write_text(text)
            return "written"

        tool = Tool("write", "Writes the total.", WRITE, write)
        return Agent(ScriptedModel(script), [tool], max_steps)

    return make_agent


def write_then_answer(text: str, answer: str) -> Callable[[Any, int], Any]:
    def script(messages: Any, seed: int) -> Any:
        if messages[-1]["role"] == "user":
            return assistant(None, ("write", {"text": text}))
        return assistant(answer)

    return script


@pytest.mark.parametrize(
    ("task", "number", "expected"),
    [("add", 0, 3506033943), ("add", 1, 1361989827), ("größer", 2, 3889563086)],
    ids=["add 0", "add 1", "not ASCII"],
)
def test_task_1_known_seeds(task, number, expected):
    """Seeds must be reproducible in any process, so they are constants here."""
    seed = case_seed(task, number)
    assert seed == expected, f"seed of {task}/{number}: expected {expected}, got {seed}"


def test_task_1_seeds_of_cases_differ():
    seeds = {case_seed(task, number) for task in ("a", "a1", "b") for number in range(20)}
    assert len(seeds) == 60, f"expected 60 different seeds, got {len(seeds)}"


def test_task_2_files_decide():
    result = run_case(TASK, 3, agent_factory(write_then_answer("12", "I am not sure.")))
    expected = Result("add", 3, True, 2, "answer")
    assert result == expected, f"expected {expected}, got {result}"
    result = run_case(TASK, 0, agent_factory(write_then_answer("75", "The total is now 12.")))
    assert result.passed is False, f"expected a failure: the file has 75, got {result}"


def test_task_2_model_receives_the_case_seed():
    seeds = []

    def script(messages: Any, seed: int) -> Any:
        seeds.append(seed)
        return assistant("Done.")

    for number in (0, 1):
        run_case(TASK, number, agent_factory(script))
    expected = [case_seed("add", 0), case_seed("add", 1)]
    assert seeds == expected, f"expected the seeds {expected}, got {seeds}"


def test_task_2_workspace_has_the_files_of_the_task():
    found = []

    def make_agent(workspace: Path) -> Agent:
        files = {
            path.relative_to(workspace).as_posix(): path.read_bytes().decode()
            for path in workspace.rglob("*")
            if path.is_file()
        }
        found.append(files)
        return agent_factory(write_then_answer("12", "Done."))(workspace)

    files = {"total.txt": "7", "notes/öl/a.txt": "größer"}
    for number in (0, 1):
        run_case(replace(TASK, files=files), number, make_agent)
    assert found[0] == files, f"expected the files {files}, got {found[0]}"
    assert found[1] == files, f"second run: expected {files} again, got {found[1]}"


def test_task_2_errors_and_step_limits():
    agent = agent_factory(lambda messages, seed: assistant("12"))
    result = run_case(replace(TASK, files={}), 0, agent)
    expected = Result("add", 0, False, 1, "answer")
    assert result == expected, f"expected {expected}, got {result}"

    def script(messages: Any, seed: int) -> Any:
        return assistant(None, ("write", {"text": "12"}))

    result = run_case(TASK, 0, agent_factory(script, max_steps=3))
    expected = Result("add", 0, True, 3, "max_steps")
    assert result == expected, f"expected {expected}, got {result}"


def test_task_2_errors_of_a_run():
    def script(messages: Any, seed: int) -> Any:
        if messages[-1]["role"] == "user":
            return assistant(None, ("write", {"text": "12"}))
        raise UserError("The prompt has 9000 tokens, more than the context.")

    result = run_case(TASK, 0, agent_factory(script))
    expected = Result("add", 0, True, 1, "error")
    assert result == expected, f"expected {expected}, got {result}"

    def script(messages: Any, seed: int) -> Any:
        raise ZeroDivisionError("internal error")

    with pytest.raises(ZeroDivisionError):
        run_case(TASK, 0, agent_factory(script))


@pytest.mark.parametrize(
    ("passed", "total", "low", "high"),
    [
        (0, 10, 0.000000, 0.277540),
        (10, 10, 0.722460, 1.000000),
        (5, 10, 0.236590, 0.763410),
        (18, 20, 0.698962, 0.972134),
        (1, 1, 0.206543, 1.000000),
    ],
)
def test_task_3_known_intervals(passed, total, low, high):
    expected = pytest.approx((low, high), abs=2e-6)
    assert_equal(wilson_interval(passed, total), expected, f"{passed} of {total}")


@pytest.mark.parametrize("z", [1.0, 1.96, 2.576])
@pytest.mark.parametrize(("passed", "total"), [(3, 7), (18, 20), (1, 400)])
def test_task_3_bounds_are_z_deviations_away(passed, total, z):
    for p in wilson_interval(passed, total, z):
        away = abs(passed / total - p) / math.sqrt(p * (1 - p) / total)
        assert_equal(away, pytest.approx(z), f"standard deviations at bound {p:.4f}")


def test_task_3_bounds_are_within_0_and_1():
    for total in range(1, 200):
        low, high = wilson_interval(0, total)[0], wilson_interval(total, total)[1]
        assert low >= 0, f"0 of {total}: expected at least 0, got {low}"
        assert high <= 1, f"{total} of {total}: expected at most 1, got {high}"


RESULTS = [
    Result("copy", 0, True, 3, "answer"),
    Result("copy", 1, True, 4, "answer"),
    Result("add", 0, True, 2, "answer"),
    Result("add", 1, False, 5, "max_steps"),
    Result("add", 10, False, 2, "answer"),
]
DIGEST = "digest 3497cd73c1694a3f"


def test_task_4_lines():
    lines = report(RESULTS).splitlines()
    names = [line.split()[0] for line in lines]
    expected = ["add", "copy", "all", "digest"]
    assert names == expected, f"expected the lines {expected}, got {names}"
    counts = [re.findall(r"(\d+) of (\d+)", line) for line in lines[:3]]
    assert_equal(counts, [[("1", "3")], [("2", "2")], [("3", "5")]], "1 of 3, 2 of 2 and 3 of 5")


def test_task_4_report_is_reproducible():
    expected = report(RESULTS)
    for seed in range(5):
        actual = report(random.Random(seed).sample(RESULTS, len(RESULTS)))
        assert_equal(actual, expected, "a report independent of the order")
    digest = report(RESULTS).splitlines()[-1]
    assert digest == DIGEST, f"expected '{DIGEST}' in every process, got '{digest}'"


@pytest.mark.parametrize(
    "change",
    [{"number": 2}, {"passed": False}, {"steps": 4}, {"stop_reason": "error"}, {"task": "copy2"}],
    ids=str,
)
def test_task_4_digest_covers_every_field(change):
    digest = report([replace(RESULTS[0], **change), *RESULTS[1:]]).splitlines()[-1]
    other = report(RESULTS).splitlines()[-1]
    assert digest != other, f"{change}: expected a digest other than {digest}"
