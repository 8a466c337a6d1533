"""A process that runs the rows of a table one after the other and says what came of each.

    python -m tests.hostile.worker folders|arguments WHOLE SCRATCH < rows > outcomes

Each line of standard input is the number of a row of that table; each line of standard output is
an object of JSON, flushed. A row that takes more time ends the process.
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

SECONDS = 5.0  # of the processor
SECONDS_OF_WAITING = 30  # for something that never comes; other programs may use the processor
CHAT = [{"role": "user", "content": "What is the capital of France?"}]


def main() -> None:
    """Runs the rows of standard input."""
    table, whole, scratch = sys.argv[1], *map(Path, sys.argv[2:])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print; standard output is for outcomes
    prepare = prepared_folder(whole, scratch) if table == "folders" else prepared_argument()
    for line in sys.stdin:
        run = prepare(int(line))
        before = _forget_peak()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(SECONDS_OF_WAITING)
        answer = outcome(run)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        answer |= {"took": _peak() - before, "ran": _ran(scratch)}
        print(json.dumps(answer), file=answers, flush=True)


def prepared_folder(whole: Path, scratch: Path) -> Callable[[int], Callable[[], None]]:
    """Makes the folder of a row, and what opens it."""

    def prepare(number: int) -> Callable[[], None]:
        case = FOLDERS[number]
        folder = scratch / "folder"
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(whole, folder)
        case.corrupt(folder)
        if case.use == "load":
            import mlx_lm  # noqa: F401 - what it imports takes seconds, whatever the folder is
        return lambda: _use(case.use, folder)

    return prepare


def prepared_argument() -> Callable[[int], Callable[[], None]]:
    """Loads a model for all rows of arguments."""
    model = load_weights("demo", Console(file=io.StringIO()))
    llm = LLM(model, kv_cache_bytes=2**22)
    return lambda number: lambda: ARGUMENTS[number].call(llm, model)


def outcome(run: Callable[[], None]) -> dict[str, Any]:
    """The sentence with which a call ended, or the kind of exception that was no sentence."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            run()
    except UserError as error:
        return {"sentence": str(error), "printed": printed.getvalue()}
    except BaseException as error:  # a panic of a library is no Exception
        return {"raised": f"{type(error).__name__}: {error}"}
    return {"raised": "nothing"}


def _use(use: str, folder: Path) -> None:
    console = Console(file=io.StringIO())
    if use == "load":
        load(str(folder), console)
        return
    model = load_weights(str(folder), console)
    if use == "load_weights":
        return
    llm = LLM(model, kv_cache_bytes=2**20)
    prompt: Any = ("a" * 100 + "! ") * 20 if use == "text" else [CHAT]
    [output] = llm.generate(prompt, SamplingParams(max_tokens=2, temperature=0.0))
    if output.error is not None:
        raise ModelError(output.error)


def _forget_peak() -> int:
    """Bytes of memory that the process has now; from here on `_peak` counts.

    Libraries that are there and that `mlx_lm` imports, as torch, have their part in it.
    """
    with contextlib.suppress(OSError):  # macOS has no such file
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    """The most memory since `_forget_peak`, in bytes; since the start, where it cannot forget."""
    with contextlib.suppress(OSError):
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _ran(scratch: Path) -> list[str]:
    """What ran of the folder: modules imported from it, and what programs left there."""
    modules = [
        name
        for name, module in sys.modules.items()
        if str(scratch) in str(getattr(module, "__file__", None))
    ]
    return modules + [str(found) for found in scratch.rglob(corruptions.MARKER)]


if __name__ == "__main__":
    main()
