"""Interleaved A/B comparison of two source checkouts on a shared machine.

    python -m benchmark.ab_compare TREE --model FOLDER

TREE is another checkout, such as the parent commit, with its extension built. Each checkout has a
worker process, which is paused while the other is measured. Every round measures both, in
alternating order; the median of the per-round ratios cancels out slowdowns of the machine.
"""

import argparse
import statistics
import sys
from contextlib import ExitStack, closing
from pathlib import Path

from .command import benchmark_parser, print_json, run_command
from .metrics import DEFAULT_METRICS, METRICS, Metric, names
from .systems.client import ROOT, WorkerProcess
from .timing import Times

TIMED = [name for name in DEFAULT_METRICS if name != "load"]


def venv_python(tree: Path) -> str:
    """Path of a checkout's Python interpreter; exits if it has no .venv."""
    python = tree / ".venv" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{tree} has no .venv/bin/python; install tiny-llm there first.")
    return str(python)


def run_interleaved(
    workers: dict[str, WorkerProcess], metric: Metric, rounds: int, limit_s: float
) -> dict[str, list[float]]:
    """Seconds per prompt or step by worker and round, after a warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for number in range(rounds + 1):
        order = list(workers) if number % 2 == 0 else list(workers)[::-1]
        for name in order:
            result = workers[name].run(metric.request, limit_s)
            if number > 0:
                seconds[name].append(result["seconds"])
    return seconds


def report(metric: Metric, seconds: dict[str, list[float]]) -> dict[str, float]:
    """Prints a metric's table row; returns its times and ratio for the JSON."""
    other, this = (Times.of(seconds[name]) for name in ("other", "this"))
    pairs = zip(seconds["this"], seconds["other"], strict=True)
    ratio = statistics.median(a / b for a, b in pairs)
    figures = {
        "other_median_s": other.median,
        "other_minimum_s": other.minimum,
        "this_median_s": this.median,
        "this_minimum_s": this.minimum,
        "ratio": ratio,
    }
    milliseconds = [f"{1e3 * value:.2f}" for value in list(figures.values())[:4]]
    print(f"| {metric.label} | {' | '.join(milliseconds)} | {ratio:.3f} |", flush=True)
    return figures


def run(args: argparse.Namespace) -> int:
    """Measures all metrics and prints a table in milliseconds per prompt or step."""
    other = args.tree.resolve()
    trees = {"other": (venv_python(other), other), "this": (sys.executable, ROOT)}
    arguments = [str(args.model.resolve())]
    figures = {}
    with ExitStack() as stack:
        workers = {
            name: stack.enter_context(
                closing(WorkerProcess(python, "tiny_llm_worker", arguments, tree, name=name))
            )
            for name, (python, tree) in trees.items()
        }
        print("| ms | TREE, median | minimum | this checkout, median | minimum | this / TREE |")
        print("|---|---:|---:|---:|---:|---:|")
        for metric in (METRICS[name] for name in args.metrics):
            seconds = run_interleaved(workers, metric, args.rounds, args.limit)
            figures[metric.name] = report(metric, seconds)
    return print_json({"rounds": args.rounds, "metrics": figures})


def parse_ab_args(
    parser: argparse.ArgumentParser, metrics: list[str], rounds: int, limit_s: float
) -> argparse.Namespace:
    """Parses the command line, with --metrics, --rounds and --limit added."""
    add = parser.add_argument
    add("--metrics", type=names(TIMED), default=metrics, metavar="NAME,…", help=", ".join(TIMED))
    add("--rounds", type=int, default=rounds)
    add("--limit", type=float, default=limit_s, help="timeout per measurement, in seconds")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {args.rounds}.")
    return args


def main() -> int:
    """Runs the command; the last line of output is JSON."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("tree", type=Path, metavar="TREE", help="checkout to compare with")
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder")
    return run_command("ab_compare", parse_ab_args(parser, TIMED, rounds=10, limit_s=120), run)


if __name__ == "__main__":
    sys.exit(main())
