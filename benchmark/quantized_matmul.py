"""Times `quantized_matmul` at the shapes of Qwen3-0.6B beside MLX's own, in one run.

    python benchmark/quantized_matmul.py

Decoding (few rows) is bound by memory: a weight of 4.25 bits is read once, whatever the number of
rows, so the figure is bytes of weights per second. Prefill (many rows) is bound by arithmetic:
2·M·I·O operations per second.

Each shape has enough matrices that they do not fit in the cache, as a model's do not. MLX's own
kernel is timed once for each shape, on few rows: it takes seconds.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable

import mlx.core as mx

from tiny_llm import kernels, quantized_matmul

SHAPES = [(3072, 1024), (1024, 3072), (151_936, 1024)]  # O, I
ROWS = (1, 4, 16, 64, 512)
GROUP_SIZE, BITS = 128, 4
CACHE_BYTES = 64_000_000
REPEATS = 9


def seconds(run: Callable[[], object]) -> list[float]:
    """The time of each of several runs, after one that is not counted."""
    run()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def matrices(O: int, I: int) -> list[tuple[mx.array, mx.array, mx.array]]:
    """Quantized matrices of one shape: (weight, scales, biases), together larger than the cache."""
    count = max(2, CACHE_BYTES // (O * I // 2))
    made = [
        mx.quantize(mx.full((O, I), 0.01 * i, mx.bfloat16), group_size=GROUP_SIZE, bits=BITS)
        for i in range(1, count + 1)
    ]
    mx.eval(made)
    return made


def measure(M: int, O: int, I: int) -> dict[str, float]:
    """Our median and minimum for M rows, and MLX's time for one."""
    weights = matrices(O, I)
    a = mx.ones((M, I), mx.bfloat16)
    repeat = 1 if M >= 64 else len(weights)

    def ours() -> None:
        mx.eval([quantized_matmul(s, b, GROUP_SIZE, BITS, a, w) for w, s, b in weights[:repeat]])

    times = [t / repeat for t in seconds(ours)]
    row: dict[str, float] = {"M": M, "O": O, "I": I, "median_us": statistics.median(times) * 1e6}
    row["min_us"] = min(times) * 1e6
    row["gb_per_s"] = O * I * (BITS + 32 / GROUP_SIZE) / 8 / row["median_us"] / 1e3
    row["gflop_per_s"] = 2 * M * O * I / row["median_us"] / 1e3
    if M == 1:
        w, s, b = weights[0]
        start = time.perf_counter()
        mx.eval(mx.quantized_matmul(a, w, s, b, group_size=GROUP_SIZE, bits=BITS))
        row["mlx_us"] = (time.perf_counter() - start) * 1e6
    return row


def main() -> int:
    """Prints a table and ends in one JSON line."""
    mx.set_default_device(mx.cpu)
    extension = kernels.extension()
    result: dict[str, object] = {
        "instruction_set": extension.instruction_set(),
        "threads": extension.num_threads(),
    }
    print("| M | O×I | median µs | min µs | GB/s | GFLOP/s | MLX's µs |")
    print("|---:|---|---:|---:|---:|---:|---:|")
    rows = [measure(M, O, I) for O, I in SHAPES for M in ROWS if M * O < 10_000_000]
    for row in rows:
        mlx = f"{row['mlx_us']:,.0f}" if "mlx_us" in row else ""
        print(
            f"| {row['M']} | {row['O']}×{row['I']} | {row['median_us']:,.0f} | "
            f"{row['min_us']:,.0f} | {row['gb_per_s']:.1f} | {row['gflop_per_s']:,.0f} | {mlx} |"
        )
    print(json.dumps({**result, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
