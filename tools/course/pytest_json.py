"""Pytest plugin: writes outcomes as JSON lines, and the running test's id."""

import json
import os
from pathlib import Path
from typing import Any

REPORT = os.environ.get("TINY_LLM_REPORT")


def pytest_runtest_logstart(nodeid: str) -> None:
    """Records the running test's id, so that runner.py can name it after a crash."""
    if REPORT is not None:
        Path(REPORT).with_suffix(".running").write_text(nodeid, encoding="utf-8")


def pytest_runtest_logreport(report: Any) -> None:
    """Records each test once: in the phase that failed or was skipped, else in the call phase."""
    if REPORT is None or (report.passed and report.when != "call"):
        return
    message = ""
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        message = str(reason).removeprefix("Skipped: ")
    elif report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        message = str(report.longrepr) if crash is None else crash.message
    outcome = {
        "test": report.nodeid,
        "passed": None if report.skipped else bool(report.passed),
        "message": message[:2000],
    }
    with Path(REPORT).open("a", encoding="utf-8") as file:
        file.write(json.dumps(outcome) + "\n")
