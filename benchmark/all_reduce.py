"""Latency and bandwidth of an all-reduce over ranks on this machine.

    python -m benchmark.all_reduce --ranks 2                # MLX's ring
    mpirun -n 2 python -m benchmark.all_reduce              # MPI

Arrays have the sizes of decoding (few rows) and prefill (hundreds of rows). Measurements of all
sizes are interleaved, so that background load affects all of them. A line fitted to the minimum
times yields the message latency and bandwidth that `parallel_cost` takes as
`--latency-us … --link-gbit …`. The medians include waits for a core: each rank needs one, and MLX's
ring threads need another.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Mapping

import mlx.core as mx
import numpy as np

from tiny_llm import UserError
from tiny_llm.models.parallel.launch import (
    current_group,
    get_group,
    join_launched_ranks,
    num_launched_ranks,
)
from tiny_llm.models.parallel.layers import all_reduce

from .command import benchmark_parser, print_json, run_command
from .parallel_cost import Link, all_reduce_seconds

ROWS = (1, 8, 64, 256, 512)


def fit_link(seconds: Mapping[int, float], ranks: int) -> Link:
    """Fits latency and bandwidth to measured times by array size in bytes.

    Minimizes relative errors, so that decoding's small arrays weigh as much as prefill's large
    arrays. `ranks` must be at least 2.
    """
    n_bytes = np.array(list(seconds), dtype=float)
    measured = np.array(list(seconds.values()))
    messages = ranks - 1
    # Linear least squares: `all_reduce_seconds` is linear in the latency and in 1/bandwidth.
    factors = np.stack([np.full_like(n_bytes, messages), messages * n_bytes], axis=1)
    (latency, per_byte), *_ = np.linalg.lstsq(factors / measured[:, None], np.ones_like(measured))
    return Link(float(latency), float(1 / per_byte), f"measured: {ranks} ranks on one machine")


def measure(hidden: int, rounds: int) -> dict[int, tuple[float, float]]:
    """This rank's (minimum, median) seconds by array size in bytes."""
    comm = current_group().comm
    arrays = [mx.ones((rows, hidden), dtype=mx.bfloat16) for rows in ROWS]
    seconds: dict[int, list[float]] = {array.nbytes: [] for array in arrays}
    for round_number in range(rounds + 1):
        for array in arrays:
            mx.eval(mx.distributed.all_sum(mx.array(1.0), group=comm))  # barrier
            start = time.perf_counter()
            mx.eval(all_reduce(array, comm))
            if round_number > 0:  # round 0 is the warm-up
                seconds[array.nbytes].append(time.perf_counter() - start)
    return {n_bytes: (min(t), statistics.median(t)) for n_bytes, t in seconds.items()}


def main() -> int:
    """Prints measured and fitted times, then a line of JSON."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=4096, help="hidden size: elements per row")
    parser.add_argument("--rounds", type=int, default=100, help="measurements per size")
    return run_command("all_reduce", parser.parse_args(), run)


def run(args: argparse.Namespace) -> int:
    """Measures all sizes on all ranks."""
    from benchmark import all_reduce as module  # workers cannot import `__main__`

    if args.ranks < 2:
        raise UserError(f"--ranks must be at least 2, got {args.ranks}.")
    join_launched_ranks()
    if num_launched_ranks() > 1:
        args.ranks = num_launched_ranks()
    seconds = get_group(args.ranks).run(module.measure, args.hidden, args.rounds)
    link = fit_link({n_bytes: minimum for n_bytes, (minimum, _) in seconds.items()}, args.ranks)
    print(f"{args.ranks} ranks, hidden size {args.hidden}, bfloat16, {args.rounds} rounds")
    print("rows     bytes    min µs  median µs  fitted µs")
    for rows, (n_bytes, (minimum, median)) in zip(ROWS, seconds.items(), strict=True):
        fitted = all_reduce_seconds(n_bytes, args.ranks, link)
        times = f"{minimum * 1e6:9.0f} {median * 1e6:10.0f} {fitted * 1e6:10.0f}"
        print(f"{rows:4} {n_bytes:9,} {times}")
    print(f"message latency {link.latency * 1e6:.1f} µs, {link.bandwidth * 8e-9:.2f} Gbit/s")
    return print_json(
        {
            "ranks": args.ranks,
            "latency_us": link.latency * 1e6,
            "link_gbit": link.bandwidth * 8e-9,
            "min_us": {n_bytes: minimum * 1e6 for n_bytes, (minimum, _) in seconds.items()},
            "median_us": {n_bytes: median * 1e6 for n_bytes, (_, median) in seconds.items()},
        }
    )


if __name__ == "__main__":
    sys.exit(main())
