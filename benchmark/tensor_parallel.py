"""Tensor parallelism on one machine: N ranks against one process with all cores.

    python -m benchmark.tensor_parallel --model FOLDER [--launcher "mpirun -n 2"] [--profile]

Every round measures three systems that use the same number of cores in total:

    one rank    the whole model
    ranks       the model split among N ranks
    parts       the same N weight shards, in N processes that do not communicate

The ranks communicate over MLX's ring, or over the backend of --launcher. The difference between
ranks and parts is the communication overhead: messages, waits for the slowest rank, and steps that
are not captured as a single graph. With --profile, rank 0 evaluates each collective separately and
prints its time, waits included.
"""

import argparse
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from time import perf_counter
from typing import Any

import mlx.core as mx

from tiny_llm import LLM, SamplingParams, UserError, load_weights
from tiny_llm.models.parallel.launch import join_launched_ranks

from .command import benchmark_parser, print_json, run_command
from .roofline import usable_threads
from .systems.client import WorkerError
from .systems.worker import token_ids
from .timing import Times

PROMPT_TOKENS, OUTPUT_TOKENS, PREFILL_TOKENS = 8, 65, 512
TASKS = ("decode", "prefill")
COLLECTIVES = ("all_sum", "all_gather")  # the functions of mx.distributed that tiny-llm calls
CHILD_FLAG = "--as-child"
EXIT = "exit\n"


def milliseconds(llm: LLM, task: str, number: int) -> float:
    """Time per output token or to the first one, by task."""
    prompt_tokens = PROMPT_TOKENS if task == "decode" else PREFILL_TOKENS
    output_tokens = OUTPUT_TOKENS if task == "decode" else 1
    prompt = token_ids(number + prompt_tokens, llm.vocab_size)[number:]
    params = SamplingParams(temperature=0, max_tokens=output_tokens, ignore_eos=True)
    [output] = llm.generate([prompt], params)
    metrics = output.metrics
    first, last = metrics.first_token_time, metrics.finished_time
    assert first is not None
    assert last is not None
    if task == "prefill":
        return (first - metrics.arrival_time) * 1e3
    return (last - first) / (output_tokens - 1) * 1e3


def serve(args: argparse.Namespace) -> None:
    """Main loop of a child process: reads lines "task round", prints milliseconds."""
    join_launched_ranks()
    options: dict[str, Any] = {
        "kv_cache_bytes": 2**28,
        "max_num_batched_tokens": PREFILL_TOKENS,
        "enable_prefix_caching": False,
    }
    if args.as_child == "part":
        part = load_weights(args.model, None, args.load_format, args.rank, args.ranks)
        llm = LLM(part, **options)
    else:
        size = args.ranks if args.as_child == "ranks" else 1
        options["load_format"] = args.load_format
        llm = LLM(args.model, tensor_parallel_size=size, **options)
    llm.reserve()
    for task in TASKS:
        milliseconds(llm, task, 0)
    print("ready", flush=True)
    for line in sys.stdin:
        if line == EXIT:  # mpirun does not forward EOF
            break
        task, number = line.split()
        print(milliseconds(llm, task, int(number)), flush=True)


class CommTimer:
    """Context manager that evaluates and times this rank's collectives.

    The evaluations add overhead.

    Attributes:
        count: number of collectives; a large array is exchanged in several.
        n_bytes: bytes contributed by this rank.
        seconds: time in collectives, including waits for slower ranks.
    """

    def __init__(self) -> None:
        self.count, self.n_bytes, self.seconds = 0, 0, 0.0
        self._functions = {name: getattr(mx.distributed, name) for name in COLLECTIVES}

    def __enter__(self) -> None:
        for name, function in self._functions.items():
            setattr(mx.distributed, name, partial(self._time, function))

    def __exit__(self, *error: object) -> None:
        for name, function in self._functions.items():
            setattr(mx.distributed, name, function)

    def _time(self, function: Callable[..., mx.array], x: mx.array, **options: Any) -> mx.array:
        mx.eval(x)
        began = perf_counter()
        result = function(x, **options)
        mx.eval(result)
        self.seconds += perf_counter() - began
        self.count += 1
        self.n_bytes += x.nbytes
        return result


def profile(args: argparse.Namespace, threads: int) -> dict[str, dict[str, float]]:
    """Breaks down rank 0's step time: collectives, rest of the model, outside the model."""
    os.environ["TINY_LLM_NUM_THREADS"] = str(threads)
    llm = LLM(
        args.model,
        kv_cache_bytes=2**28,
        max_num_batched_tokens=PREFILL_TOKENS,
        enable_prefix_caching=False,
        load_format=args.load_format,
        tensor_parallel_size=args.ranks,
    )
    figures = {}
    for task in TASKS:
        milliseconds(llm, task, 0)
        comm_timer, statistics = CommTimer(), llm.runner.statistics
        start, in_model, steps = llm.step_seconds, llm.runner.seconds, statistics.target_steps
        with comm_timer:
            milliseconds(llm, task, 1)
        steps = statistics.target_steps - steps
        total, in_model = llm.step_seconds - start, llm.runner.seconds - in_model
        breakdown = {
            "step ms": total / steps * 1e3,
            "collectives ms": comm_timer.seconds / steps * 1e3,
            "rest of the model ms": (in_model - comm_timer.seconds) / steps * 1e3,
            "outside the model ms": (total - in_model) / steps * 1e3,
            "collectives": comm_timer.count / steps,
            "kB sent": comm_timer.n_bytes / steps / 1e3,
        }
        print(task, *(f"{name} {value:.2f}" for name, value in breakdown.items()), sep="  ")
        figures[task] = breakdown
    return figures


class ChildProcesses:
    """Child processes, each with a kind ("whole", "ranks" or "part") and a rank."""

    def __init__(self, args: argparse.Namespace, kinds: Sequence[tuple[str, int]], threads: int):
        command = [sys.executable, "-m", __spec__.name, "--model", args.model]
        command += ["--load-format", args.load_format, "--ranks", str(args.ranks)]
        launcher = shlex.split(args.launcher) if kinds[0][0] == "ranks" else []
        self._children = [
            subprocess.Popen(
                [*launcher, *command, CHILD_FLAG, kind, "--rank", str(rank)],
                env={**os.environ, "TINY_LLM_NUM_THREADS": str(threads)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for kind, rank in kinds
        ]

    def wait_until_ready(self) -> None:
        """Waits until the processes have loaded the model; raises `WorkerError` if one failed."""
        for child in self._children:
            if self._read(child) != "ready":
                raise WorkerError("a child process failed to start; its error is above.")

    def measure(self, task: str, number: int) -> float:
        """Time of the slowest process in milliseconds; all processes start simultaneously."""
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write(f"{task} {number}\n")
            child.stdin.flush()
        return max(float(self._read(child)) for child in self._children)

    def close(self) -> None:
        """Waits for the processes to exit."""
        for child in self._children:
            child.communicate(EXIT)

    @staticmethod
    def _read(child: "subprocess.Popen[str]") -> str:
        assert child.stdout is not None
        return child.stdout.readline().strip()


def compare(
    systems: Mapping[str, Callable[[str, int], float]], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Milliseconds by task, system and round."""
    measured: dict[str, dict[str, list[float]]] = {
        task: {name: [] for name in systems} for task in TASKS
    }
    for number in range(1, rounds + 1):
        for task in TASKS:
            for name, measure in systems.items():
                measured[task][name].append(measure(task, number))
    return measured


def report(task: str, measured: dict[str, list[float]]) -> dict[str, float]:
    """Prints a task's results and returns them."""
    times = {name: Times.of(values) for name, values in measured.items()}
    for name, time in times.items():
        print(f"{task:8} {name:9} {time.minimum:8.2f} ms  median {time.median:8.2f}")
    one, ranks, parts = (measured[name] for name in ("one rank", "ranks", "parts"))
    speed = statistics.median(a / b for a, b in zip(one, ranks, strict=True))
    overhead = statistics.median(1 - a / b for a, b in zip(parts, ranks, strict=True))
    print(f"{task:8} speedup over one rank {speed:.2f} ×; communication overhead {overhead:.0%}")
    minima = {f"{name} ms": time.minimum for name, time in times.items()}
    return {**minima, "speed": speed, "overhead": overhead}


def main() -> int:
    """Prints each system's minimum and median, then a line of JSON."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--load-format", choices=("auto", "dummy"), default="auto")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--launcher", default="", help="command that starts the ranks (default: MLX's ring)"
    )
    parser.add_argument("--profile", action="store_true", help="break down rank 0's step time")
    parser.add_argument(CHILD_FLAG, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_child is not None:
        serve(args)
        return 0
    return run_command("tensor_parallel", args, run)


def run(args: argparse.Namespace) -> int:
    """Measures all systems or, with --profile, breaks down rank 0's step time."""
    if args.ranks < 2:
        raise UserError(f"--ranks must be at least 2, got {args.ranks}.")
    cores = usable_threads()
    each = max(1, cores // args.ranks)
    if args.profile:
        return print_json({"model": args.model, "ranks": args.ranks, **profile(args, each)})
    kinds = {
        "one rank": ([("whole", 0)], cores),
        "ranks": ([("ranks", 0)], each),
        "parts": ([("part", rank) for rank in range(args.ranks)], each),
    }
    with ExitStack() as stack:
        systems = {}
        for name, (children, threads) in kinds.items():
            system = stack.enter_context(closing(ChildProcesses(args, children, threads)))
            system.wait_until_ready()
            systems[name] = system.measure
        measured = compare(systems, args.rounds)
    figures = {task: report(task, measured[task]) for task in TASKS}
    settings = {"model": args.model, "ranks": args.ranks, "launcher": args.launcher}
    return print_json({**settings, "threads": each, **figures})


if __name__ == "__main__":
    sys.exit(main())
