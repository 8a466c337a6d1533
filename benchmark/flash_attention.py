"""Times `flash_attention` at the shape of Qwen3-0.6B's heads beside MLX's own, in one run.

    python benchmark/flash_attention.py

Decoding reads all keys and values once: the figure is their bytes per second, to be compared with
what threads reach that do nothing but read. Prefill is bound by arithmetic: 4·D operations for each
score that a causal mask leaves. MLX's own is timed three times, on large problems once.

The caches of several layers take turns, so that none is still in the processor's cache, as a
model's are not.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import numpy as np

from tiny_llm import flash_attention, kernels

H_Q, H, D = 16, 8, 128
DECODE = (256, 1024, 4096, 16_384)  # S
PREFILL = ((128, 128), (128, 4096), (512, 512), (4096, 4096))  # L, S
CACHE_BYTES = 200_000_000
REPEATS = 9

Inputs = tuple[mx.array, mx.array, mx.array]


def seconds(run: Callable[[], object], repeats: int) -> list[float]:
    """The time of each of several runs, after one that is not counted."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def read_gb_per_s(threads: int) -> float:
    """How fast an array that no cache holds can be read."""
    array = np.ones(CACHE_BYTES // 8, np.uint64)
    parts = np.array_split(array, threads)
    with ThreadPoolExecutor(threads) as pool:
        times = seconds(lambda: sum(pool.map(np.bitwise_or.reduce, parts)), REPEATS)
    return array.nbytes / min(times) / 1e9


def problems(L: int, S: int, dtype: mx.Dtype) -> list[Inputs]:
    """(query, key, value) of several layers; keys and values are slices of larger buffers."""
    count = max(1, CACHE_BYTES // (2 * H * S * D * dtype.size)) if L == 1 else 1
    room = S + 64
    made = [
        (
            mx.random.normal((1, L, H_Q, D)).astype(dtype).swapaxes(1, 2),
            mx.random.normal((1, H, room, D)).astype(dtype)[:, :, :S],
            mx.random.normal((1, H, room, D)).astype(dtype)[:, :, :S],
        )
        for _ in range(min(count, 28))
    ]
    mx.eval(made)
    return made


def ours(layers: Sequence[Inputs]) -> None:
    """Our kernel on every layer."""
    mx.eval([flash_attention(q, k, v, mask="causal") for q, k, v in layers])


def mlx(layers: Sequence[Inputs]) -> None:
    """MLX's on every layer."""
    attend = mx.fast.scaled_dot_product_attention
    mx.eval([attend(q, k, v, scale=D**-0.5, mask="causal") for q, k, v in layers])


def measure(L: int, S: int, dtype: mx.Dtype) -> dict[str, object]:
    """Our times for one layer, and MLX's best."""
    layers = problems(L, S, dtype)
    work = L * (L + 1) // 2 + L * (S - L)  # scores of one head
    times = [t / len(layers) for t in seconds(lambda: ours(layers), REPEATS)]
    few = layers[:2]
    if work < 1_000_000:
        theirs = min(seconds(lambda: mlx(few), 3)) / len(few)
    else:
        start = time.perf_counter()
        mlx(few)
        theirs = time.perf_counter() - start
    return {
        "L": L,
        "S": S,
        "dtype": str(dtype).rpartition(".")[2],
        "median_us": statistics.median(times) * 1e6,
        "min_us": min(times) * 1e6,
        "gb_per_s": 2 * H * S * D * dtype.size / min(times) / 1e9,
        "gflop_per_s": 4 * D * H_Q * work / min(times) / 1e9,
        "mlx_us": theirs * 1e6,
    }


def main() -> int:
    """Prints a table and ends in one JSON line."""
    mx.set_default_device(mx.cpu)
    extension = kernels.extension()
    result: dict[str, str | int | float] = {
        "instruction_set": extension.instruction_set(),
        "threads": extension.num_threads(),
        "read_gb_per_s": read_gb_per_s(extension.num_threads()),
    }
    print(f"reading alone: {result['read_gb_per_s']:.1f} GB/s")
    cases = [(1, S, dtype) for dtype in (mx.bfloat16, mx.float16, mx.float32) for S in DECODE]
    cases += [(L, S, dtype) for dtype in (mx.bfloat16, mx.float32) for L, S in PREFILL]
    print("| L | S | dtype | median µs | min µs | GB/s | GFLOP/s | MLX's µs |")
    print("|---:|---:|---|---:|---:|---:|---:|---:|")
    rows = []
    for case in cases:
        row = measure(*case)
        rows.append(row)
        print(
            f"| {row['L']} | {row['S']} | {row['dtype']} | {row['median_us']:,.0f} | "
            f"{row['min_us']:,.0f} | {row['gb_per_s']:.1f} | {row['gflop_per_s']:,.0f} | "
            f"{row['mlx_us']:,.0f} |",
            flush=True,
        )
    print(json.dumps({**result, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
