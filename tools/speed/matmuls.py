"""Measures 4-bit matmuls with this process's `tiny_llm`: see __main__.py.

    python -m tools.speed.matmuls slowed --read 40e9 --peak 500e9 --name down --rounds 5
    python -m tools.speed.matmuls kernels --read 40e9 --peak 500e9 --day 4.3 --rounds 5

Clock, comparison and roofline are functions of day 4.1: the learner's if this process imports the
learner's `tiny_llm`. Prints a progress line before each long measurement, and one line of JSON at
the end.
"""

import argparse
import copy
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import mlx.core as mx

from tiny_llm import kernels, quantized_matmul
from tiny_llm.errors import TaskNotImplemented
from tiny_llm.kernels.roofline import (
    HardwareLimits,
    KernelCost,
    Timings,
    best_prefetch_distance,
    compare,
    furthest_from_roofline,
    matmul_cost,
    roofline_fraction,
    roofline_seconds,
)

BITS, GROUP_SIZE = 4, 128
VARIABLE = "TINY_LLM_MATMUL"
PREFETCH_VARIABLE = "TINY_LLM_PREFETCH"
# Kernels measured on each day: the day's, and earlier ones for comparison.
DAY_KERNELS = {
    "4.2": ("loops", "factored", "vectors"),
    "4.3": ("vectors", "prepacked", "prefetched"),
    "4.4": ("vectors", "prefetched", "panels", "pairs"),
    "all": ("loops", "factored", "vectors", "prepacked", "prefetched", "panels", "pairs"),
}
PREFETCH_DISTANCES = (
    256,
    1024,
    4096,
    16384,
)  # prefetch distances in bytes, all of which day 4.3 measures
# Matmuls of a decoding step of Qwen3-0.6B: outputs, inputs, and number of weight matrices that a
# measurement multiplies in turn, so that weights are read from memory, not from a CPU cache.
MATMULS = {
    "qkv": (4096, 1024, 8),
    "o": (1024, 2048, 16),
    "gate_up": (6144, 1024, 6),
    "down": (1024, 3072, 10),
    "head": (151_936, 1024, 1),
}
COMPARED_MATMUL = ("gate_up", 14)  # matmul for comparing kernels, number of weight matrices
ROWS_BY_DAY = {"4.4": (64, 2)}  # days with several rows of activations: (rows, weight matrices)
SLOWED_REPETITIONS = 4  # number of times that day 4.1's slow matmul is computed
PROGRESS_PREFIX = "… "  # distinguishes progress lines from the results


class Matmuls:
    """M rows of I activations times each of several 4-bit weight matrices, O×I."""

    def __init__(self, O: int, I: int, num_matrices: int, M: int = 1):
        self._a = mx.random.normal((M, I)).astype(mx.bfloat16)
        self._weights = [
            (
                mx.random.uniform(shape=(O, I // GROUP_SIZE)).astype(mx.bfloat16),
                mx.random.normal((O, I // GROUP_SIZE)).astype(mx.bfloat16),
                mx.random.randint(0, 2**31 - 1, (O, I * BITS // 32)).astype(mx.uint32),
            )
            for _ in range(num_matrices)
        ]
        mx.eval(self._a, self._weights)
        self._prepacked: dict[int, Matmuls] = {}
        one = matmul_cost(M, O, I, BITS, GROUP_SIZE)
        self.cost = KernelCost(num_matrices * one.num_bytes, num_matrices * one.flops)

    def __call__(self) -> list[mx.array]:
        """Lazy results of all matmuls."""
        return [
            quantized_matmul(scales, biases, GROUP_SIZE, BITS, self._a, b)
            for scales, biases, b in self._weights
        ]

    def with_repeated_work(self) -> list[mx.array]:
        """Lazy results of all matmuls, each computed several times: day 4.1's slow matmul."""
        return [result for _ in range(SLOWED_REPETITIONS) for result in self()]

    def with_kernel(self, kernel: str | None, distance: int | None = None) -> Callable[[], None]:
        """Function that runs all matmuls with a kernel and its weight layout.

        `kernel` is a value of TINY_LLM_MATMUL, None for this machine's best; `distance` is the
        prefetch distance in bytes, None for the kernel's default.

        Raises:
            RuntimeError: the learner has not implemented the kernel.
            ValueError: this machine has no kernel of that name.
        """
        with selected_kernel(kernel, distance):
            matmuls = self.prepacked(kernels.prepack_rows())

        def run() -> None:
            with selected_kernel(kernel, distance):
                mx.eval(matmuls())

        return run

    def prepacked(self, rows: int) -> "Matmuls":
        """The same matmuls, weights prepacked in groups of `rows` rows; `self` if `rows` is 0."""
        if rows == 0:
            return self
        if rows not in self._prepacked:
            prepacked = copy.copy(self)
            prepacked._weights = [
                (prepacked_part(s, rows), prepacked_part(b, rows), prepacked_part(w, rows))
                for s, b, w in self._weights
            ]
            self._prepacked[rows] = prepacked
        return self._prepacked[rows]


def prepacked_part(matrix: mx.array, rows: int) -> mx.array:
    """Prepacks a weight array (scales, biases or packed weights), as at model loading."""
    extension = kernels.extension()
    return extension.prepack_weight(matrix, rows, extension.huge_pages(matrix.nbytes), 0)


def run_interleaved(runs: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, Timings]:
    """Prints a progress line and times `runs` with day 4.1's `compare`."""
    print_progress(f"{', '.join(runs)}: interleaved, {rounds} rounds")
    return compare(runs, rounds)


def print_progress(what: str) -> None:
    """Prints a progress line for __main__.py."""
    print(f"{PROGRESS_PREFIX}{what}", flush=True)


def runnable(
    wanted: Mapping[str, Callable[[], Any]],
) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Runs each function once; returns those that succeed, and the error messages of the others."""
    runs, unwritten = {}, {}
    for name, run in wanted.items():
        try:
            mx.eval(run())
        except (RuntimeError, ValueError) as error:
            unwritten[name] = str(error)  # not implemented, or not supported by this machine
        else:
            runs[name] = run
    return runs, unwritten


@contextmanager
def selected_kernel(kernel: str | None, distance: int | None = None) -> Iterator[None]:
    """Selects the matmul kernel within a `with` block."""
    with with_variables(
        {VARIABLE: kernel, PREFETCH_VARIABLE: None if distance is None else str(distance)}
    ):
        yield


@contextmanager
def with_variables(wanted: Mapping[str, str | None]) -> Iterator[None]:
    """Sets environment variables within a `with` block; a variable with value None is unset."""
    before = {name: os.environ.pop(name, None) for name in wanted}
    try:
        os.environ.update({name: value for name, value in wanted.items() if value is not None})
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def row(times: Timings, cost: KernelCost, limits: HardwareLimits) -> dict[str, float]:
    """Row of a table: seconds, bytes, operations, lower bound in seconds, share of the limit."""
    return {
        "median": times.median,
        "minimum": times.minimum,
        "megabytes": cost.num_bytes / 1e6,
        "gigaflop": cost.flops / 1e9,
        "least": roofline_seconds(cost, limits),
        "share": roofline_fraction(times, cost, limits),
    }


def measure_slowed(name: str, limits: HardwareLimits, rounds: int) -> dict[str, Any]:
    """Measures all matmuls of a step; the one called `name` repeats its work."""
    matmuls = {label: Matmuls(*shape) for label, shape in MATMULS.items()}
    runs: dict[str, Callable[[], Any]] = dict(matmuls)
    runs[name] = matmuls[name].with_repeated_work
    times = run_interleaved(runs, rounds)
    costs = {label: matmul.cost for label, matmul in matmuls.items()}
    rows = {label: row(times[label], costs[label], limits) for label in matmuls}
    return {"rows": rows, "slowest": furthest_from_roofline(times, costs, limits)}


def measure_kernels(
    names: Sequence[str | None], limits: HardwareLimits, rounds: int, day: str | None = None
) -> dict[str, Any]:
    """Measures one matmul with Week 4's implemented kernels, or the best kernel.

    Args:
        names: entries of `DAY_KERNELS`; None is this machine's best, labeled "best". "prefetched"
            is measured at each of `PREFETCH_DISTANCES`, labeled "prefetched 256" and so on.
        day: course day, such as "4.4"; sets the rows of activations, see `ROWS_BY_DAY`.
    """
    name_of_matmul, num_matrices = COMPARED_MATMUL
    M, num_matrices = ROWS_BY_DAY.get(day or "", (1, num_matrices))
    matmuls = Matmuls(*MATMULS[name_of_matmul][:2], num_matrices, M)
    runs: dict[str, Callable[[], Any]] = {}
    unwritten = {}
    for name in names:
        for distance in PREFETCH_DISTANCES if name == "prefetched" and M == 1 else (None,):
            label = " ".join(str(part) for part in (name or "best", distance) if part is not None)
            try:
                run = matmuls.with_kernel(name, distance)
                run()
            except (
                RuntimeError,
                ValueError,
            ) as error:  # not implemented, or not supported by this machine
                unwritten[name or "best"] = str(error)
            else:
                runs[label] = run
    times = run_interleaved(runs, rounds)
    rows = {name: row(times[name], matmuls.cost, limits) for name in runs}
    fetched = {
        distance: times[f"prefetched {distance}"]
        for distance in PREFETCH_DISTANCES
        if f"prefetched {distance}" in times
    }
    return {"rows": rows, "unwritten": unwritten, "prefetch_distance": chosen_distance(fetched)}


def chosen_distance(fetched: dict[int, Timings]) -> int | None:
    """Result of the learner's `best_prefetch_distance` in bytes; None if not implemented."""
    try:
        return best_prefetch_distance(fetched) if fetched else None
    except TaskNotImplemented:
        return None


def measurement_main(measure: Callable[[HardwareLimits, int, bool], dict[str, Any]]) -> int:
    """Main program; `measure` takes limits, rounds, whether to run only the best."""
    return run_measurement(lambda args, limits: measure(limits, args.rounds, args.what == "best"))


def run_measurement(measure: Callable[[argparse.Namespace, HardwareLimits], dict[str, Any]]) -> int:
    """Main program: prints the results of `measure` as JSON.

    Exit status: 0, or 2 if a function of day 4.1 must be implemented first.
    """
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("what", choices=("slowed", "kernels", "best"))
    parser.add_argument("--read", type=float, required=True)
    parser.add_argument("--peak", type=float, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--name")
    parser.add_argument("--day")
    args = parser.parse_args()
    mx.set_default_device(mx.cpu)
    mx.random.seed(0)
    try:
        found = measure(args, HardwareLimits(args.read, args.peak))
    except TaskNotImplemented as unwritten:
        print(unwritten, file=sys.stderr)
        return 2
    print(json.dumps(found))
    return 0


def measure_matmuls(args: argparse.Namespace, limits: HardwareLimits) -> dict[str, Any]:
    """Runs the measurement selected on the command line."""
    if args.what == "slowed":
        return measure_slowed(args.name, limits, args.rounds)
    names = DAY_KERNELS[args.day] if args.what == "kernels" else (None,)
    return measure_kernels(names, limits, args.rounds, args.day)


if __name__ == "__main__":
    sys.exit(run_measurement(measure_matmuls))
