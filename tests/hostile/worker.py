"""Worker process: runs table rows in order and reports their outcomes.

    python -m tests.hostile.worker folders|arguments VALID SCRATCH < rows > outcomes

VALID is a valid checkpoint. Input: a row number per line. Output: a JSON object per line, flushed.
A row that exceeds its time limit kills the process.
"""

import contextlib
import io
import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.hostile import corruptions
from tests.hostile.argument_cases import ARGUMENTS
from tests.hostile.checkpoint_cases import FOLDERS
from tiny_llm import LLM, ModelError, SamplingParams, load, load_weights
from tiny_llm.errors import UserError
from tiny_llm.server.protocol.request_fields import default_sampling_params

SECONDS = 5.0  # CPU time limit per row
WALL_SECONDS = 30  # wall time limit per row, longer because other programs may use the CPU
CHAT = [{"role": "user", "content": "What is the capital of France?"}]


def main() -> None:
    table, valid, scratch = sys.argv[1], *map(Path, sys.argv[2:])
    outputs = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print to stdout, which is reserved for outcomes
    prepare = prepared_folder(valid, scratch) if table == "folders" else prepared_argument()
    for line in sys.stdin:
        run = prepare(int(line))
        before = _reset_peak()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(WALL_SECONDS)
        output = outcome(run)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        output |= {"took": _peak() - before, "ran": _executed_code(scratch)}
        print(json.dumps(output), file=outputs, flush=True)


def prepared_folder(valid: Path, scratch: Path) -> Callable[[int], Callable[[], None]]:
    """Returns a function from row numbers to calls on a corrupted folder."""

    def prepare(number: int) -> Callable[[], None]:
        case = FOLDERS[number]
        folder = scratch / "folder"
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(valid, folder)
        case.corrupt(folder)
        if case.use == "load":
            import mlx_lm  # noqa: F401 - imported before measuring, since it takes seconds
        return lambda: _use(case.use, folder)

    return prepare


def prepared_argument() -> Callable[[int], Callable[[], None]]:
    """Loads a model once; returns a function from row numbers to calls."""
    model = load_weights("demo", Console(file=io.StringIO()))
    llm = LLM(model, kv_cache_bytes=2**22)
    return lambda number: lambda: ARGUMENTS[number].call(llm, model)


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


def _use(use: str, folder: Path) -> None:
    console = Console(file=io.StringIO())
    if use == "load":
        load(str(folder), console)
        return
    if use == "serve":
        default_sampling_params(folder, "auto")
        return
    model = load_weights(str(folder), console, "dummy" if use == "dummy" else "auto")
    if use in ("load_weights", "dummy"):
        return
    llm = LLM(model, kv_cache_bytes=2**20)
    prompt: Any = ("a" * 100 + "! ") * 20 if use == "text" else [CHAT]
    [output] = llm.generate(prompt, SamplingParams(max_tokens=2, temperature=0.0))
    if output.error is not None:
        raise ModelError(output.error)


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


def _executed_code(scratch: Path) -> list[str]:
    """Evidence of code run from the folder: imported modules and marker files."""
    modules = [
        name
        for name, module in sys.modules.items()
        if str(scratch) in str(getattr(module, "__file__", None))
    ]
    return modules + [str(actual) for actual in scratch.rglob(corruptions.MARKER)]


if __name__ == "__main__":
    main()
