"""Times each operation of the extension against MLX's and the roofline.

    python -m benchmark.ops [--only quantized_matmul,flash_attention]

Decoding (few rows) is memory-bound, because each weight is read once regardless of the number of
rows: compare GB/s. Prefill (many rows) is compute-bound: compare GFLOP/s. The last column is the
median's share of the roofline, measured in the same run. The roofline is not meaningful for
element-wise operations: their inputs are still in cache, and launch overhead exceeds the
arithmetic.
"""

import argparse
import sys
import time
from typing import Any

import mlx.core as mx

from tiny_llm import kernels

from . import op_cases, recurrent_cases
from .command import benchmark_parser, print_json, run_command
from .metrics import names
from .op_cases import Case
from .roofline import Limits, Machine, Peaks, measured_limits
from .timing import measure

CASES = op_cases.CASES | recurrent_cases.CASES
MATMULS = {"quantized_matmul", "multi_quantized_matmul", "grouped_quantized_matmul", "matmul"}
REPEATS = 9
BRIEF_CALLS = 32  # calls per measurement, if one is too short for the clock's resolution


def available() -> list[str]:
    """Names of the operations that the extension implements."""
    return [name for name in CASES if hasattr(kernels, name)]


def time_case(case: Case) -> dict[str, Any]:
    """Measures the extension's median and minimum time, and MLX's median."""
    calls = BRIEF_CALLS if len(case.inputs) == 1 and case.flops < 1e7 else 1
    inputs = case.inputs * calls
    times = measure(lambda: mx.eval([case.ours(*given) for given in inputs]), REPEATS)
    row: dict[str, Any] = {
        "op": case.name,
        "shape": case.shape,
        "median_us": times.median / len(inputs) * 1e6,
        "min_us": times.minimum / len(inputs) * 1e6,
        "bytes": case.n_bytes,
        "flops": case.flops,
    }
    if case.mlx is not None:
        mlx = case.mlx
        if case.mlx_is_slow:
            start = time.perf_counter()
            mx.eval(mlx(*inputs[0]))
            row["mlx_us"] = (time.perf_counter() - start) * 1e6
        else:
            mlx_times = measure(lambda: mx.eval([mlx(*given) for given in inputs]), REPEATS)
            row["mlx_us"] = mlx_times.median / len(inputs) * 1e6
    return row


def time_cases(cases: list[Case], limits: Limits) -> list[dict[str, Any]]:
    """Table rows of one operation, with the roofline bound per call."""
    rows, machine = limits.around(lambda: [time_case(case) for case in cases])
    if machine is not None:
        for row in rows:
            peak = kernel_peak(row["op"], machine, limits.isa)
            bound = machine.seconds(row["bytes"], row["flops"], peaks=Peaks(peak, peak))
            row["roofline_us"] = bound * 1e6
    return rows


def kernel_peak(name: str, machine: Machine, isa: str) -> float:
    """Peak of the instruction that an operation's kernel executes, in GFLOP/s."""
    peaks = machine.kernel_peaks(isa, quantized=name != "matmul")
    if name in MATMULS:
        return peaks.matmuls
    return peaks.attention if "attention" in name else machine.f32_gflop_per_s


def show(row: dict[str, Any], limits: Limits) -> None:
    """Prints one row of the table."""
    median, name = row["median_us"], f"{row['op']} {row['shape']}"
    share = limits.share(name, row["roofline_us"], median) if "roofline_us" in row else ""
    cells = [
        row["op"],
        row["shape"],
        f"{median:,.1f}",
        f"{row['min_us']:,.1f}",
        f"{row['bytes'] / median / 1e3:.1f}",
        f"{row['flops'] / median / 1e3:,.0f}",
        f"{row['mlx_us']:,.1f}" if "mlx_us" in row else "",
        share,
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> int:
    """Runs the command; the last line of output is JSON."""
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "--only",
        type=names(available()),
        default=available(),
        metavar="NAME,…",
        help=f"comma-separated list of {', '.join(CASES)} (default: all)",
    )
    return run_command("ops", parser.parse_args(), run)


def run(args: argparse.Namespace) -> int:
    """Times the operations; returns the exit status."""
    mx.set_default_device(mx.cpu)
    extension = kernels.extension()
    print("| op | shape | median µs | min µs | GB/s | GFLOP/s | MLX's µs | share of roofline |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    rows = []
    with measured_limits() as limits:
        for name in args.only:
            measured = time_cases(list(CASES[name]()), limits)
            for row in measured:
                show(row, limits)
            rows += measured
    result = {
        "instruction_set": extension.instruction_set(),
        "threads": extension.num_threads(),
        "machine": None if limits.machine is None else str(limits.machine),
        "rows": rows,
    }
    return print_json(result, limits.exit_status())


if __name__ == "__main__":
    sys.exit(main())
