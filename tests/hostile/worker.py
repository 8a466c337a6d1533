"""Worker process: runs argument cases in order and reports their outcomes.

    python -m tests.hostile.worker < rows > outcomes

Input: a row number per line. Output: a JSON object per line, flushed. A row that exceeds its time
limit kills the process.
"""

import contextlib
import io
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.hostile.argument_cases import ARGUMENTS
from tiny_llm import LLM, load_weights
from tiny_llm.errors import UserError

SECONDS = 5.0  # CPU time limit per row
WALL_SECONDS = 30  # wall time limit per row, longer because other programs may use the CPU


def main() -> None:
    outputs = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print to stdout, which is reserved for outcomes
    model = load_weights("demo", Console(file=io.StringIO()))
    llm = LLM(model, kv_cache_bytes=2**22)
    for line in sys.stdin:
        case = ARGUMENTS[int(line)]
        before = _reset_peak()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(WALL_SECONDS)
        output = outcome(lambda case=case: case.call(llm, model))
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        print(json.dumps(output | {"took": _peak() - before}), file=outputs, flush=True)


def outcome(run: Callable[[], None]) -> dict[str, Any]:
    """Outcome of a call: its `UserError` as "sentence", or what it "raised"."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            run()
    except UserError as error:
        return {"sentence": str(error), "printed": printed.getvalue()}
    except BaseException as error:  # Rust panics do not derive from Exception
        return {"raised": f"{type(error).__name__}: {error}"}
    return {"raised": "nothing"}


def _reset_peak() -> int:
    """Resets the peak reported by `_peak`; returns the memory in use in bytes."""
    with contextlib.suppress(OSError):  # macOS has no /proc
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    """Peak memory in bytes since `_reset_peak`; without /proc, since the start."""
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
