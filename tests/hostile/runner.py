"""Runs the argument cases in a worker process and checks their outcomes.

Each case must end with a `UserError` of one sentence, within limits on memory and time.
"""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MAX_BYTES = 200_000_000  # limit on memory growth; the interpreter and libraries use another 100 MB
ROOT = Path(__file__).resolve().parents[2]

# Wording of Python's built-in exceptions, which means nothing to users.
PYTHON_WORDING = re.compile(
    r"object is not|object has no|not subscriptable|positional|local variable|NoneType|unhashable"
    r"|index out of range|KeyError|TypeError|Errno|invalid literal|could not convert|codec can't"
    r"|expected str\b|argument must|recursion|has no len|Traceback|<class|<built-in|\bassert"
)


def run_rows(rows: Sequence[Any], all_rows: Sequence[Any]) -> None:
    """Runs `rows` of a table in one process; fails with the problems of all rows."""
    numbers = "\n".join(str(all_rows.index(case)) for case in rows)
    done = subprocess.run(
        [sys.executable, "-m", "tests.hostile.worker"],
        cwd=ROOT,
        input=numbers,
        capture_output=True,
        text=True,
        timeout=300,
    )
    outcomes = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [
        f"{case.name}: {problem}"
        for case, outcome in zip(rows, outcomes, strict=False)
        for problem in problems(case, outcome)
    ]
    if len(outcomes) < len(rows):
        last = rows[len(outcomes)].name
        wrong.append(f"{last}: the process exited with {done.returncode}: {done.stderr[-2000:]}")
    assert not wrong, "\n".join(wrong)


def problems(case: Any, outcome: dict) -> list[str]:
    """Returns a message for each of the case's requirements that is violated."""
    if outcome.get("sentence") is None:
        actual = [f"raised {outcome['raised']}"]
    else:
        actual = message_problems(case.words, outcome["sentence"])
        if outcome["printed"]:
            actual.append(f"printed {outcome['printed'][:300]!r}")
    if outcome["took"] > MAX_BYTES:
        actual.append(f"took {outcome['took']:,} bytes of memory")
    return actual


def message_problems(words: Sequence[str], sentence: str) -> list[str]:
    """Returns what is wrong with an error message that must contain `words`."""
    actual = []
    missing = [word for word in words if word not in sentence]
    if missing:
        actual.append(f"lacks {missing} in: {sentence}")
    if "\n" in sentence or not sentence.endswith((".", "?")) or len(sentence) > 800:
        actual.append(f"is not one sentence: {sentence!r}")
    if PYTHON_WORDING.search(sentence):
        actual.append(f"has the wording of a Python exception: {sentence}")
    return actual
