"""Times `flash_attention` at the shape of Qwen3-0.6B's heads beside MLX's own, in one run.

    python benchmark/flash_attention.py

Decoding reads all keys and values once: the figure is their bytes per second, beside what a plain
sum over as many bytes reaches. Prefill is bound by arithmetic: 4·D operations for each of the
L·(L + 1) / 2 scores of a head that a causal mask leaves.

The caches of several layers take turns, so that none is still in the processor's cache, as a
model's are not.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import mlx.core as mx

from tiny_llm import flash_attention, kernels

H_Q, H, D = 16, 8, 128
DECODE = (256, 1024, 4096, 16384)  # S
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
    """Our times for one layer, and MLX's median."""
    layers = problems(L, S, dtype)
    work = L * (L + 1) // 2 + L * (S - L)  # scores of one head
    repeats = 3 if work > 4_000_000 else REPEATS
    times = [t / len(layers) for t in seconds(lambda: ours(layers), repeats)]
    theirs = [t / len(layers) for t in seconds(lambda: mlx(layers), 3)]
    return {
        "L": L,
        "S": S,
        "dtype": str(dtype).rpartition(".")[2],
        "median_us": statistics.median(times) * 1e6,
        "min_us": min(times) * 1e6,
        "gb_per_s": 2 * H * S * D * dtype.size / min(times) / 1e9,
        "gflop_per_s": 4 * D * H_Q * work / min(times) / 1e9,
        "mlx_us": statistics.median(theirs) * 1e6,
    }


def main() -> int:
    """Prints a table and ends in one JSON line."""
    mx.set_default_device(mx.cpu)
    extension = kernels.extension()
    result: dict[str, object] = {
        "instruction_set": extension.instruction_set(),
        "threads": extension.num_threads(),
    }
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
