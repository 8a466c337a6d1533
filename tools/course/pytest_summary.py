"""Pytest plugin: summarizes unwritten tasks for `pdm run test --week N`.

Tests of an unwritten task fail without a traceback and are counted on one line. If several cases of
a test function fail for other reasons, shows the first failure and the number of failing cases.
Prints why tests are skipped; exit status 5 if no test ran.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Generator
from typing import Any

import pytest

from .runner import NOT_BUILT, NOT_WRITTEN

SHOWN_CASES = 6
# Matches "RuntimeError: week 2, day 2, task 2: dot is yours to write; see the book, 'Day 2.2: …'".
UNWRITTEN = re.compile(
    rf"(week \d+, day \d+, task \d+): (\S+) {NOT_WRITTEN}; (see the book, '[^']*')"
)


def pytest_configure(config: pytest.Config) -> None:
    """Registers a `SummaryPlugin`, whose counters belong to one pytest session."""
    config.pluginmanager.register(SummaryPlugin(), "brief")


class SummaryPlugin:
    """Counts tests of unwritten tasks, and failing cases of each test function."""

    def __init__(self) -> None:
        self._unwritten: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._failed: dict[str, list[str]] = defaultdict(list)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, Any]:
        """Replaces an unwritten task's traceback with its message."""
        report = yield
        report.unwritten, report.is_repeated = None, False
        if report.failed and call.excinfo is not None:
            report.unwritten = summary_of(str(call.excinfo.value))
            if report.unwritten is not None:
                report.longrepr = " ".join(report.unwritten)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """Moves unwritten tasks and repeated failures to categories that pytest does not print."""
        if getattr(report, "unwritten", None) is not None:
            return "unwritten", "w", "UNWRITTEN"
        if getattr(report, "is_repeated", False):
            return "failed alike", "F", "FAILED"
        return None

    @pytest.hookimpl(tryfirst=True)  # before the terminal reporter, which queries the status
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Counts failures and unwritten tasks, including those from xdist workers."""
        if getattr(report, "unwritten", None) is not None:
            begin, function, end = report.unwritten
            self._unwritten[begin, end][function] += 1
        elif report.failed:
            function, _, case = report.nodeid.partition("[")
            report.is_repeated = function in self._failed
            self._failed[function].append(case.removesuffix("]"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Sets pytest's status "no tests ran" if all tests are skipped."""
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        assert reporter is not None
        if nothing_ran(reporter, session.exitstatus):
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED

    def pytest_terminal_summary(
        self,
        terminalreporter: pytest.TerminalReporter,
        exitstatus: int,
        config: pytest.Config,
    ) -> None:
        """One line per repeatedly failing function, unwritten task and reason for skipping."""
        reasons: Counter[str] = Counter()
        for report in terminalreporter.stats.get("skipped", []):
            reasons[str(report.longrepr[2]).removeprefix("Skipped: ")] += 1
        for reason, number in reasons.items():
            skipped = "1 test is skipped" if number == 1 else f"{number} tests are skipped"
            terminalreporter.write_line(f"{skipped}: {reason}", yellow=True)
        if nothing_ran(terminalreporter, exitstatus):
            options = (("-k", config.option.keyword), ("-m", config.option.markexpr))
            chosen = " and ".join(f'{flag} "{value}"' for flag, value in options if value)
            deselected = len(terminalreporter.stats.get("deselected", []))
            none = (
                f"none of {deselected} tests matches {chosen}" if deselected else "none was found"
            )
            why = "all are skipped" if reasons else none
            terminalreporter.write_line(f"no test ran: {why}", red=True)
        for function, cases in self._failed.items():
            if len(cases) > 1:
                named = [*cases[:SHOWN_CASES], *(["…"] if len(cases) > SHOWN_CASES else [])]
                line = f"{function} fails for {len(cases)} cases: {', '.join(named)}"
                terminalreporter.write_line(line, red=True)
        for (begin, end), functions in self._unwritten.items():
            tests = functions.total()
            test_count = "1 test waits" if tests == 1 else f"{tests} tests wait"
            line = f"{begin} {', '.join(functions)}{end} ({test_count})"
            terminalreporter.write_line(line, yellow=True)


def nothing_ran(reporter: pytest.TerminalReporter, status: int) -> bool:
    """Whether no test failed or passed."""
    fine = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    return status in fine and not reporter.stats.get("passed")


def summary_of(message: str) -> tuple[str, str, str] | None:
    """Parses the error of an unwritten task or unbuilt extension; others: None.

    Returns (beginning, function, end) of a summary line.
    """
    message = " ".join(message.split())
    match = UNWRITTEN.search(message)
    if match:
        return f"{match[1]} {NOT_WRITTEN}:", match[2], f"; {match[3]}"
    if NOT_BUILT in message:
        return "your extension is not built yet:", "`pdm run build-ext`", " builds it"
    return None
