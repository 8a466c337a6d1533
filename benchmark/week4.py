"""Tokens per second with the kernels of each day of Week 4.

    python -m benchmark.week4 --model FOLDER

Runs Week 2's model with the solution's kernels, selected by the chapters' environment variables.
Each day has a worker process, which is paused while another day's worker is measured. If a
measurement exceeds --limit, as with the plain loops of the first days, the table shows an upper
bound on the speed.
"""

import argparse
import os
import sys
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

from .ab_compare import parse_ab_args
from .command import benchmark_parser, print_json, run_command
from .metrics import METRICS, Metric
from .systems.client import WorkerProcess, WorkerTimeoutError
from .timing import Times


@dataclass(frozen=True)
class Day:
    """Kernels at the end of a day; an unset variable selects the fastest kernel."""

    name: str
    matmul: str  # value of TINY_LLM_MATMUL; empty: not set
    other_kernels: dict[str, str] = field(default_factory=dict)  # environment variables

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of a worker that uses the day's kernels."""
        matmul = {"TINY_LLM_MATMUL": self.matmul} if self.matmul else {}
        inherited = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        return {**inherited, **matmul, **self.other_kernels}


LOOPS = {"TINY_LLM_FUSED": "loops", "TINY_LLM_ATTENTION": "loops", "TINY_LLM_GRAPH_CAPTURE": "off"}
FUSED = {name: value for name, value in LOOPS.items() if name != "TINY_LLM_FUSED"}
VARIABLES = {"TINY_LLM_MATMUL", *LOOPS}

DAYS = [
    Day("Week 3's end", "loops", LOOPS),
    Day("4.2, factored", "factored", LOOPS),
    Day("4.2, vectors", "vectors", LOOPS),
    Day("4.3", "prefetched", LOOPS),
    Day("4.4", "panels", LOOPS),
    Day("4.5", "panels", FUSED),
    Day("4.6", "panels", {"TINY_LLM_ATTENTION": "split", "TINY_LLM_GRAPH_CAPTURE": "off"}),
    Day("4.7", "panels", {"TINY_LLM_ATTENTION": "split"}),
    Day("the solution's fastest", ""),
]
DEFAULT_METRICS = ["prefill-512", "decode-128", "decode-4096", "decode-128-batch-4"]


def measure_days(
    model: Path, metric: Metric, rounds: int, limit_s: float
) -> dict[str, Times | None]:
    """Times by day; None if a measurement exceeded the limit."""
    seconds: dict[str, list[float]] = {day.name: [] for day in DAYS}
    slow: set[str] = set()
    with ExitStack() as stack:
        workers = {day.name: stack.enter_context(closing(start(day, model))) for day in DAYS}
        for number in range(rounds):
            for name in list(workers)[:: 1 if number % 2 == 0 else -1]:
                try:
                    result = workers[name].run(metric.request, limit_s)
                except WorkerTimeoutError:
                    del workers[name]
                    slow.add(name)
                    continue
                seconds[name].append(result["seconds"])
    return {name: None if name in slow else Times.of(taken) for name, taken in seconds.items()}


def start(day: Day, model: Path) -> WorkerProcess:
    """Starts a day's worker."""
    arguments = [str(model.resolve())]
    environment = day.environment
    return WorkerProcess(
        sys.executable, "tiny_llm_worker", arguments, environment=environment, name=day.name
    )


def cell(metric: Metric, times: Times | None, limit_s: float) -> str:
    """Tokens per second as a table cell."""
    if times is None:
        return f"< {metric.tokens_per_second(limit_s):.1f}"
    speed = metric.tokens_per_second(times.median)
    return f"{speed:,.0f}" if speed >= 100 else f"{speed:.1f}"


def main() -> int:
    """Prints the table; the last line of output is JSON."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder")
    return run_command("week4", parse_ab_args(parser, DEFAULT_METRICS, rounds=3, limit_s=60), run)


def run(args: argparse.Namespace) -> int:
    """Measures all metrics and prints the table."""
    figures: dict[str, dict[str, Times | None]] = {}
    for name in args.metrics:
        figures[name] = measure_days(args.model, METRICS[name], args.rounds, args.limit)
        print(f"{METRICS[name].label}: measured", file=sys.stderr)
    print("| tokens/s | " + " | ".join(METRICS[name].label for name in figures) + " |")
    print("|---|" + "---:|" * len(figures))
    for day in DAYS:
        cells = [
            cell(METRICS[name], times[day.name], args.limit) for name, times in figures.items()
        ]
        print(f"| {day.name} | " + " | ".join(cells) + " |")
    medians = {
        name: {day: None if taken is None else taken.median for day, taken in times.items()}
        for name, times in figures.items()
    }
    return print_json({"rounds": args.rounds, "limit_s": args.limit, "seconds": medians})


if __name__ == "__main__":
    sys.exit(main())
