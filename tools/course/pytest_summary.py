"""pytest plugin of `pdm run test --week N`: one line per unimplemented task.

Tests of an unimplemented task fail and are counted, without their uninformative tracebacks. Of
tests failing for another reason, the first case is shown with the number of the others.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Generator
from typing import Any

import pytest

from .runner import NOT_BUILT, NOT_WRITTEN

SHOWN_CASES = 6
# Of "RuntimeError: week 2, day 2, task 2: dot is yours to write; see the book, 'Day 2.2: …'".
TOLD = re.compile(rf"(week \d+, day \d+, task \d+): (\S+) {NOT_WRITTEN}; (see the book, '[^']*')")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugin."""
    config.pluginmanager.register(SummaryPlugin(), "brief")


class SummaryPlugin:
    """Counts tests of unimplemented tasks by message, and failing cases by function."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._failed: dict[str, list[str]] = defaultdict(list)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, Any]:
        """Replaces the traceback of an unimplemented task by its message."""
        report = yield
        report.unwritten, report.is_again = None, False
        if report.failed and call.excinfo is not None:
            report.unwritten = summary_of(str(call.excinfo.value))
            if report.unwritten is not None:
                report.longrepr = " ".join(report.unwritten)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        """Puts these tests into separate categories, apart from reported failures."""
        if getattr(report, "unwritten", None) is not None:
            return "unwritten", "w", "UNWRITTEN"
        if getattr(report, "is_again", False):
            return "failed alike", "F", "FAILED"
        return None

    @pytest.hookimpl(tryfirst=True)  # before the terminal reporter's own hook
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Counts the tests, those of xdist workers included."""
        if getattr(report, "unwritten", None) is not None:
            begin, function, end = report.unwritten
            self._waiting[begin, end][function] += 1
        elif report.failed:
            function, _, case = report.nodeid.partition("[")
            report.is_again = function in self._failed
            self._failed[function].append(case.removesuffix("]"))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints a line per repeatedly failing function, and a line per unimplemented task."""
        for function, cases in self._failed.items():
            if len(cases) > 1:
                named = [*cases[:SHOWN_CASES], *(["…"] if len(cases) > SHOWN_CASES else [])]
                line = f"{function} fails for {len(cases)} cases: {', '.join(named)}"
                terminalreporter.write_line(line, red=True)
        for (begin, end), functions in self._waiting.items():
            tests = functions.total()
            waiting = "1 test waits" if tests == 1 else f"{tests} tests wait"
            line = f"{begin} {', '.join(functions)}{end} ({waiting})"
            terminalreporter.write_line(line, yellow=True)


def summary_of(message: str) -> tuple[str, str, str] | None:
    """Message parts of an unimplemented task or an unbuilt extension.

    Returns:
        Beginning, function and end of a line; None for any other error.
    """
    message = " ".join(message.split())
    told = TOLD.search(message)
    if told:
        return f"{told[1]} {NOT_WRITTEN}:", told[2], f"; {told[3]}"
    if NOT_BUILT in message:
        return "your extension is not built yet:", "`pdm run build-ext`", " builds it"
    return None
