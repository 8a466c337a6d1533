"""Tensor parallelism on one machine: N ranks that share its cores, beside one with all of them.

    python -m benchmark.tensor_parallel --model FOLDER
    python -m benchmark.tensor_parallel --model FOLDER --load-format dummy --ranks 2
    python -m benchmark.tensor_parallel --model FOLDER --backend ring
    python -m benchmark.tensor_parallel --model FOLDER --profile

Three systems take turns, round after round, with the same number of cores each:

    one rank    the whole model
    ranks       the model on N ranks
    parts       the same N parts of the weights, each in a process of its own that asks nobody

The ranks speak over MPI where that is installed, else over MLX's ring; --backend chooses. What the
ranks take longer than the parts is the price of working together: the messages, waiting
for the slowest, and steps that are not recorded. Decoding follows a prompt of 8 tokens. With
--profile, rank 0 waits for each exchange by itself and says what they take; waiting for slower
ranks is included.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tiny_llm import LLM, SamplingParams, load_weights
from tiny_llm.models.parallel import layers
from tiny_llm.models.parallel.rendezvous import BACKENDS, COLLECTIVES, chosen_backend

from .roofline import usable_threads
from .systems.worker import token_ids
from .timing import Times

PROMPT_TOKENS, ANSWER_TOKENS, PREFILL_TOKENS = 8, 65, 512
TASKS = ("decode", "prefill")
CHILD_FLAG = "--as-child"


def milliseconds(llm: LLM, task: str, number: int) -> float:
    """Of a decode step, the mean of many; or of a prompt.

    Args:
        llm: the engine.
        task: one of `TASKS`.
        number: of the round; each has another prompt.
    """
    prompt_tokens = PROMPT_TOKENS if task == "decode" else PREFILL_TOKENS
    answer_tokens = ANSWER_TOKENS if task == "decode" else 1
    prompt = token_ids(number + prompt_tokens, llm.vocab_size)[number:]
    params = SamplingParams(temperature=0, max_tokens=answer_tokens, ignore_eos=True)
    [output] = llm.generate([prompt], params)
    metrics = output.metrics
    first, last = metrics.first_token_time, metrics.finished_time
    assert first is not None
    assert last is not None
    if task == "prefill":
        return (first - metrics.arrival_time) * 1e3
    return (last - first) / (answer_tokens - 1) * 1e3


def serve(args: argparse.Namespace) -> None:
    """A child: answers each line, a task and a round's number, with its milliseconds."""
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
        task, number = line.split()
        print(milliseconds(llm, task, int(number)), flush=True)


def profile(args: argparse.Namespace, threads: int) -> dict[str, dict[str, float]]:
    """Where rank 0's time is, by task: in exchanges, in the rest of the model, and outside it."""
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
        layers.comm_timer = comm_timer = layers.CommTimer()
        began, in_model, steps = llm.step_seconds, llm.runner.seconds, llm.runner.statistics.steps
        milliseconds(llm, task, 1)
        layers.comm_timer = None
        steps = llm.runner.statistics.steps - steps
        whole, in_model = llm.step_seconds - began, llm.runner.seconds - in_model
        own = {
            "step ms": whole / steps * 1e3,
            "exchanges ms": comm_timer.seconds / steps * 1e3,
            "rest of the model ms": (in_model - comm_timer.seconds) / steps * 1e3,
            "outside ms": (whole - in_model) / steps * 1e3,
            "exchanges": comm_timer.count / steps,
            "kB sent": comm_timer.n_bytes / steps / 1e3,
        }
        print(task, *(f"{name} {value:.2f}" for name, value in own.items()), sep="  ")
        figures[task] = own
    return figures


class System:
    """Processes that are measured together.

    Args:
        args: of the command.
        kinds: of each child: which it is, and its rank.
        threads: of each process.
    """

    def __init__(self, args: argparse.Namespace, kinds: Sequence[tuple[str, int]], threads: int):
        command = [sys.executable, "-m", __spec__.name, "--model", args.model]
        command += ["--load-format", args.load_format, "--ranks", str(args.ranks)]
        self._children = [
            subprocess.Popen(
                [*command, CHILD_FLAG, kind, "--rank", str(rank)],
                env={**os.environ, "TINY_LLM_NUM_THREADS": str(threads)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for kind, rank in kinds
        ]
        for child in self._children:
            if self._read(child) != "ready":
                raise RuntimeError(f"a process of '{kinds[0][0]}' did not start.")

    def measure(self, task: str, number: int) -> float:
        """The milliseconds of the slowest process; all begin at once."""
        for child in self._children:
            assert child.stdin is not None
            child.stdin.write(f"{task} {number}\n")
            child.stdin.flush()
        return max(float(self._read(child)) for child in self._children)

    def close(self) -> None:
        """Ends the processes."""
        for child in self._children:
            child.communicate()

    @staticmethod
    def _read(child: "subprocess.Popen[str]") -> str:
        assert child.stdout is not None
        return child.stdout.readline().strip()


def compare(
    systems: dict[str, Callable[[str, int], float]], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Milliseconds by task and system, one for each round."""
    measured: dict[str, dict[str, list[float]]] = {
        task: {name: [] for name in systems} for task in TASKS
    }
    for number in range(1, rounds + 1):
        for task in TASKS:
            for name, measure in systems.items():
                measured[task][name].append(measure(task, number))
    return measured


def report(task: str, measured: dict[str, list[float]]) -> dict[str, float]:
    """Prints a task's lines; returns its figures."""
    times = {name: Times.of(values) for name, values in measured.items()}
    for name, time in times.items():
        print(f"{task:8} {name:9} {time.minimum:8.2f} ms  median {time.median:8.2f}")
    one, ranks, parts = (measured[name] for name in ("one rank", "ranks", "parts"))
    speed = statistics.median(a / b for a, b in zip(one, ranks, strict=True))
    together = statistics.median(1 - a / b for a, b in zip(parts, ranks, strict=True))
    print(f"{task:8} ranks are {speed:.2f} × as fast as one; {together:.0%} is working together")
    minima = {f"{name} ms": time.minimum for name, time in times.items()}
    return {**minima, "speed": speed, "together": together}


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the minimum and median of each system, and a line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--load-format", choices=("auto", "dummy"), default="auto")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--backend", choices=BACKENDS, help="what the ranks speak over")
    parser.add_argument("--profile", action="store_true", help="where a step's time is, on rank 0")
    parser.add_argument(CHILD_FLAG, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.as_child is not None:
        serve(args)
        return
    # Asked for, so that what is written is what was used.
    args.backend = os.environ[COLLECTIVES] = args.backend or chosen_backend()
    if args.ranks < 2:
        parser.error(f"--ranks is {args.ranks}; there is nothing to compare below 2.")
    cores = usable_threads()
    each = max(1, cores // args.ranks)
    if args.profile:
        print(
            json.dumps(
                {
                    "model": args.model,
                    "ranks": args.ranks,
                    "backend": args.backend,
                    **profile(args, each),
                }
            )
        )
        return
    started = {
        "one rank": System(args, [("whole", 0)], cores),
        "ranks": System(args, [("ranks", 0)], each),
        "parts": System(args, [("part", rank) for rank in range(args.ranks)], each),
    }
    try:
        measured = compare({name: one.measure for name, one in started.items()}, args.rounds)
    finally:
        for one in started.values():
            one.close()
    figures = {task: report(task, measured[task]) for task in TASKS}
    named = {"model": args.model, "ranks": args.ranks, "backend": args.backend}
    print(json.dumps({**named, "threads": each, **figures}))


if __name__ == "__main__":
    main()
