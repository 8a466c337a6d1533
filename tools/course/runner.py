"""Runs tests in separate processes and reports outcomes per task."""

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .tasks import DAYS
from .tree import ROOT, environment

# Substrings of the errors of unwritten tasks and of an unbuilt extension.
NOT_WRITTEN = "is yours to write"
NOT_BUILT = "the C++ extension cannot be used"


@dataclass(frozen=True)
class Outcome:
    """Outcome of a test; `passed` is None if it was skipped.

    `test` is its pytest id, or "" for a session that crashed or timed out; `message` is the error
    or the reason for skipping.
    """

    test: str
    passed: bool | None
    message: str

    @property
    def task(self) -> str | None:
        """Id of the tested task; None if the test belongs to no task."""
        return task_of_test(self.test)

    @property
    def is_unwritten(self) -> bool:
        """Whether the test failed on an unwritten task."""
        return NOT_WRITTEN in self.message

    @property
    def is_not_built(self) -> bool:
        """Whether the test failed because the extension is not built."""
        return NOT_BUILT in self.message


def task_of_test(test: str) -> str | None:
    """Task id of a test: "1.3.2" for "tests/week_1/test_day_3.py::test_task_2_…"."""
    file, _, name = test.partition("::")
    number = re.match(r"test_task_(\d+)_", name)
    for day in DAYS:
        if day.test_file == file and number:
            return f"{day.id}.{number[1]}"
    return None


class Runner:
    """Runs tests on a learner's source tree or the solution, each session in a new process.

    On Linux, sessions are forks of a preloaded process: see fork_server.py. Use as a context
    manager. Not thread-safe.
    """

    def __init__(self) -> None:
        self._fork_server: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._fork_server is not None:
            self._fork_server.kill()
            self._fork_server.communicate()
            self._fork_server = None

    def run(
        self, tree: Path | None, tests: Sequence[str], *options: str, timeout: float | None = None
    ) -> list[Outcome]:
        """Runs tests in one pytest session, on the solution if `tree` is None.

        `tests` are files or ids, `options` are pytest's, `timeout` is in seconds. Returns outcomes
        in order, and one with test "" after a crash or timeout.
        """
        with tempfile.TemporaryDirectory() as folder:
            report, output = Path(folder) / "report.jsonl", Path(folder) / "output"
            arguments = ["-q", "-p", "tools.course.pytest_json", "-p", "no:cacheprovider"]
            # loading plugins takes longer than a task's tests
            arguments.append("--disable-plugin-autoload")
            job = {
                "arguments": [*arguments, *options, *tests],
                "environment": {**environment(tree), "TINY_LLM_REPORT": str(report)},
                "tree": None if tree is None else str(tree),
                "output": str(output),
            }
            status = (self._forked if sys.platform == "linux" else _in_new_process)(job, timeout)
            crash = crash_message(status, report)
            text = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
            lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
        outcomes = [Outcome(**json.loads(line)) for line in lines]
        if status not in (0, 1):
            reason = crash or f"status {status}"
            if status is None:
                reason = f"timeout after {timeout:.0f} s"
            outcomes.append(Outcome("", False, f"{reason}\n{text[-4000:]}"))
        return outcomes

    def _forked(self, job: dict[str, Any], timeout: float | None) -> int | None:
        """Exit status; None after a timeout, -1 if the fork server died."""
        if self._fork_server is None:
            self._fork_server = subprocess.Popen(
                [sys.executable, "-m", "tools.course.fork_server"],
                cwd=ROOT,
                env=environment(None),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        assert self._fork_server.stdin is not None
        assert self._fork_server.stdout is not None
        print(json.dumps(job), file=self._fork_server.stdin, flush=True)
        ready, _, _ = select.select([self._fork_server.stdout], [], [], timeout)
        line = self._fork_server.stdout.readline() if ready else ""
        if line:
            return int(json.loads(line)["status"])
        os.killpg(self._fork_server.pid, signal.SIGKILL)  # with the running session
        self.__exit__()
        return None if not ready else -1


def _in_new_process(job: dict[str, Any], timeout: float | None) -> int | None:
    """Exit status of the session; None after a timeout."""
    with open(job["output"], "w") as output:
        try:
            return subprocess.run(
                [sys.executable, "-m", "pytest", *job["arguments"]],
                cwd=ROOT,
                env=job["environment"],
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=timeout,
            ).returncode
        except subprocess.TimeoutExpired:
            return None


def crash_message(status: int | None, report: Path) -> str | None:
    """Names test and usual cause if a signal killed the session; otherwise None.

    pytest_json.py records the running test in a file next to `report`.
    """
    running = report.with_suffix(".running")
    if status is None or status >= 0 or not running.exists():
        return None
    test, name = running.read_text(encoding="utf-8"), signal.Signals(-status).name
    return (
        f"{test} crashed ({name}). The usual cause is C++ code that reads or writes beyond an "
        "array, or a lambda that captures local variables by reference: it runs after its function "
        "has returned, so capture pointers and numbers by value."
    )


def first_line(message: str) -> str:
    """Returns the first non-blank line of a message."""
    return next((line for line in message.split("\n") if line.strip()), "")
