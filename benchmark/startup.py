"""Time and memory from process start to the first token.

    python -m benchmark.startup --model FOLDER

Each repeat is a new process that imports tiny-llm, loads the model and runs a one-token prompt. The
page cache is warm, so this is the cost of a restart. Memory is the peak resident set size. A second
measurement loads the weights alone. Its time, prepacking included, is compared with that of a plain
copy of the files; the growth of peak memory is compared with the size of the weights.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from tiny_llm.models import find_model

from .command import benchmark_parser, print_json, run_command
from .systems.client import WorkerError, WorkerProcess, checkpoint_bytes


def main() -> int:
    """Prints the figures; the last line of output is JSON."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", default="demo", help="model name or folder (default: demo)")
    parser.add_argument("--repeats", type=int, default=3)
    return run_command("startup", parser.parse_args(), run)


def run(args: argparse.Namespace) -> int:
    """Starts all processes and prints the figures."""
    folder = find_model(args.model, Console(stderr=True))
    loads = []
    for _ in range(1 + args.repeats):  # the first run, not counted, fills the page cache
        worker = WorkerProcess(sys.executable, "tiny_llm_worker", [str(folder)])
        worker.close()
        loads.append(worker.ready)
    copies, weights = [], []
    for _ in range(args.repeats):
        copies.append(read_weights(folder, "--copy"))
        weights.append(read_weights(folder))
    seconds = [load.process_seconds for load in loads[1:]]
    peak, size = max(load.peak_bytes for load in loads), checkpoint_bytes(folder)
    print(
        f"first token after {statistics.median(seconds):.2f} s (median; best {min(seconds):.2f}), "
        f"{peak / 1e6:,.0f} MB peak resident, checkpoint {size / 1e6:,.0f} MB"
    )
    growth = max(run["peak_bytes"] / run["bytes"] for run in weights)
    print(
        f"weights loaded in {_times(weights)}, plain copy in {_times(copies)}; "
        f"the peak resident set grows by {growth:.2f} × the size of the weights"
    )
    return print_json(
        {
            "model": args.model,
            "weights": weights,
            "copies": copies,
            "median_s": statistics.median(seconds),
            "min_s": min(seconds),
            "peak_bytes": peak,
            "checkpoint_bytes": size,
        }
    )


def _times(runs: list[dict[str, Any]]) -> str:
    seconds = [run["seconds"] for run in runs]
    return f"{statistics.median(seconds):.2f} s (median; best {min(seconds):.2f})"


def read_weights(folder: Path, *flags: str) -> dict[str, Any]:
    """Runs `benchmark.load_weights` once and returns its figures.

    Raises:
        WorkerError: the process failed.
    """
    command = [sys.executable, "-m", "benchmark.load_weights", str(folder), *flags]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        raise WorkerError(f"load_weights failed: {run.stderr.strip().splitlines()[-1]}")
    return json.loads(run.stdout.splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
