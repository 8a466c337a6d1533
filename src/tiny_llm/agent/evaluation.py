"""Evaluation: runs tasks with several seeds and checks the resulting files.

Reports contain no times, dates or paths, and the engine's output does not depend on the batch or
on cached prefixes, so repeated evaluations print identical reports.
"""

import contextlib
import hashlib
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path

from ..errors import UserError
from .branches import Check, MakeAgent, passes


@dataclass(frozen=True)
class EvalTask:
    """A task: name, prompt, check of the resulting files, initial files by path."""

    name: str
    prompt: str
    check: Check
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, order=True)
class Result:
    """Outcome of a case: a task with the seed `case_seed(task, number)`.

    `stop_reason` is that of the transcript, or "error" if a `UserError` ended the run.
    """

    task: str
    number: int
    passed: bool
    steps: int
    stop_reason: str


def case_seed(task: str, number: int) -> int:
    """Seed of a case: first 4 bytes of SHA-256 of "task/number", big-endian."""
    # [task 7.5.1 seed]
    digest = hashlib.sha256(f"{task}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big")
    # [/task 7.5.1 seed]


def run_case(task: EvalTask, number: int, make_agent: MakeAgent) -> Result:
    """Runs a task in a new workspace, with the seed of `number`, and checks the resulting files.

    A `UserError`, e.g. for a prompt longer than the context, ends only this run.
    """
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        # [task 7.5.2 case]
        for path, text in task.files.items():
            (workspace / path).parent.mkdir(parents=True, exist_ok=True)
            (workspace / path).write_text(text, encoding="utf-8")
        agent = make_agent(workspace)
        transcript = agent.start(task.prompt)
        with contextlib.suppress(UserError):
            agent.resume(transcript, case_seed(task.name, number))
        passed = passes(task.check, workspace)
        reason = transcript.stop_reason or "error"
        return Result(task.name, number, passed, transcript.steps, reason)
        # [/task 7.5.2 case]


def wilson_interval(passed: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson score interval: all p with |passed/total − p| ≤ z √(p (1−p)/total).

    Args:
        passed, total: numbers of cases; total is at least 1.
        z: normal quantile; 1.96 for 95 % confidence.
    """
    # [task 7.5.3 interval]
    rate, extra = passed / total, z * z / total
    half = math.sqrt(extra * rate * (1 - rate) + extra * extra / 4)
    low, high = ((rate + extra / 2 + side) / (1 + extra) for side in (-half, half))
    return max(0.0, low), min(1.0, high)
    # [/task 7.5.3 interval]


def report(results: Sequence[Result]) -> str:
    """Formats a line per task (sorted by name), a total line and a digest line.

    The order of `results` has no effect. The digest line is "digest " and the first 16 hex digits
    of SHA-256 over the `repr` of the sorted list of results as tuples.
    """
    # [task 7.5.4 report]
    ordered = sorted(results)
    lines = [
        summary(name, [result for result in ordered if result.task == name])
        for name in sorted({result.task for result in ordered})
    ]
    digest = hashlib.sha256(repr([astuple(result) for result in ordered]).encode()).hexdigest()
    return "\n".join([*lines, summary("all", ordered), f"digest {digest[:16]}"])
    # [/task 7.5.4 report]


def summary(name: str, results: Sequence[Result]) -> str:
    passed, total = sum(result.passed for result in results), len(results)
    low, high = wilson_interval(passed, total)
    steps = sum(result.steps for result in results) / total
    rates = f"{passed / total:4.0%}  ({low:.0%} to {high:.0%})"
    return f"{name:10} {passed:3} of {total:<3} {rates:20} {steps:.1f} steps"
