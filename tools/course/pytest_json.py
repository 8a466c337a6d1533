"""pytest plugin that writes one JSON line per test: see runner.py."""

import json
import os
from pathlib import Path
from typing import Any

REPORT = os.environ.get("TINY_LLM_REPORT")


def pytest_runtest_logreport(report: Any) -> None:
    """Reports each test once: at the failing or skipped phase, else at the call."""
    if REPORT is None or (report.passed and report.when != "call"):
        return
    message = ""
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        message = str(report.longrepr) if crash is None else crash.message
    outcome = {
        "test": report.nodeid,
        "passed": None if report.skipped else bool(report.passed),
        "message": message[:2000],
    }
    with Path(REPORT).open("a", encoding="utf-8") as file:
        file.write(json.dumps(outcome) + "\n")
