"""What a sum over ranks takes on this machine: latency and bandwidth of MPI, or of MLX's ring.

    python -m benchmark.all_reduce --ranks 2
    python -m benchmark.all_reduce --ranks 2 --backend ring

Starts N processes that sum arrays of the sizes of decoding (few rows) and prefill (hundreds), as
tensor parallelism does: over MPI where that is installed, else over the ring's sockets. Sizes take
turns, so a busy moment hits all of them. A straight line through the least times gives the latency
of a message and the bandwidth; `parallel_cost --latency-us … --link-gbit …` takes them. Medians
beside them show what waiting for a core adds: each rank needs one, and the ring wants another.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

import mlx.core as mx
import numpy as np

from tiny_llm.models.parallel.layers import all_reduce
from tiny_llm.models.parallel.rendezvous import BACKENDS, COLLECTIVES, Meeting, chosen_backend, take

from .parallel_cost import Link, all_reduce_seconds

ROWS = (1, 8, 64, 256, 512)
LIMIT = 300  # seconds for all ranks together
RANK_FLAG = "--as-rank"
PLACE = "BENCHMARK_PLACE"  # the variable with a rank's place


def fit(seconds: Mapping[int, float], ranks: int) -> Link:
    """The link that explains best what sums of so many bytes took.

    Errors count relative to the time, so that the small sums of decoding matter as much as those
    of prefill.

    Args:
        seconds: by the array's bytes.
        ranks: that took part, 2 at least.
    """
    n_bytes = np.array(list(seconds), dtype=float)
    taken = np.array(list(seconds.values()))
    messages = ranks - 1
    # all_reduce_seconds is linear in the latency and in 1/bandwidth.
    factors = np.stack([np.full_like(n_bytes, messages), messages * n_bytes], axis=1)
    (latency, per_byte), *_ = np.linalg.lstsq(factors / taken[:, None], np.ones_like(taken))
    return Link(float(latency), float(1 / per_byte), f"measured: {ranks} ranks on one machine")


def run_rank(rank: int, hidden: int, rounds: int) -> dict[int, tuple[float, float]]:
    """Sums in turns, in one of the ranks; the least and the median seconds by the array's bytes."""
    group = take(rank, json.loads(os.environ[PLACE]), [])
    arrays = [mx.ones((rows, hidden), dtype=mx.bfloat16) for rows in ROWS]
    taken: dict[int, list[float]] = {array.nbytes: [] for array in arrays}
    for turn in range(rounds + 1):
        for array in arrays:
            mx.eval(mx.distributed.all_sum(mx.array(1.0), group=group))  # all ranks start together
            began = time.perf_counter()
            mx.eval(all_reduce(array, group))
            if turn:  # the first is slower
                taken[array.nbytes].append(time.perf_counter() - began)
    return {n_bytes: (min(t), statistics.median(t)) for n_bytes, t in taken.items()}


def measure(ranks: int, hidden: int, rounds: int) -> dict[int, tuple[float, float]]:
    """Starts the ranks; returns what rank 0 measured.

    Raises:
        RuntimeError: a rank failed.
    """
    command = [sys.executable, "-m", __spec__.name, "--hidden", str(hidden)]
    command += ["--rounds", str(rounds), RANK_FLAG]
    processes = [
        subprocess.Popen(
            [*command, str(rank)],
            env={**os.environ, PLACE: json.dumps(place)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, place in enumerate(Meeting(ranks).places())
    ]
    try:
        outputs = [process.communicate(timeout=LIMIT)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(process.returncode for process in processes):
        raise RuntimeError("a rank failed; what it said is above.")
    return {int(key): tuple(value) for key, value in json.loads(outputs[0]).items()}


def main(argv: Sequence[str] | None = None) -> None:
    """Prints what was measured beside what the fitted link says, and a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=4096, help="numbers of a row")
    parser.add_argument("--rounds", type=int, default=100, help="measurements of each size")
    parser.add_argument("--backend", choices=BACKENDS, help="what the ranks speak over")
    parser.add_argument(RANK_FLAG, type=int, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.as_rank is not None:
        print(json.dumps(run_rank(args.as_rank, args.hidden, args.rounds)))
        return
    # Asked for, so that what is written is what was used.
    args.backend = os.environ[COLLECTIVES] = args.backend or chosen_backend()
    if args.ranks < 2:
        parser.error(f"--ranks is {args.ranks}; a sum over ranks needs at least 2.")
    taken = measure(args.ranks, args.hidden, args.rounds)
    link = fit({n_bytes: least for n_bytes, (least, _) in taken.items()}, args.ranks)
    print(f"{args.ranks} ranks, hidden size {args.hidden}, bfloat16, {args.rounds} rounds in turns")
    print("rows     bytes  least µs  median µs  fitted µs")
    for rows, (n_bytes, (least, median)) in zip(ROWS, taken.items(), strict=True):
        fitted = all_reduce_seconds(n_bytes, args.ranks, link)
        print(f"{rows:4} {n_bytes:9,} {least * 1e6:9.0f} {median * 1e6:10.0f} {fitted * 1e6:10.0f}")
    print(f"latency of a message {link.latency * 1e6:.1f} µs, {link.bandwidth * 8e-9:.2f} Gbit/s")
    print(
        json.dumps(
            {
                "ranks": args.ranks,
                "backend": args.backend,
                "latency_us": link.latency * 1e6,
                "link_gbit": link.bandwidth * 8e-9,
                "least_us": {n_bytes: least * 1e6 for n_bytes, (least, _) in taken.items()},
                "median_us": {n_bytes: median * 1e6 for n_bytes, (_, median) in taken.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
