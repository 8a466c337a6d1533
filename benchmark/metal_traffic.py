"""Counts memory traffic and operations of tiny-llm's and MLX's Metal kernels.

    python -m benchmark.metal_traffic [--only "matvec"]

Kernels run in the project's emulator (tools/metal_emulator) on any machine; nothing is timed. MLX's
kernels are compiled from the headers in its wheel. Both kernels run the same slice of a job: a few
threadgroups with their full inner loops. All threadgroups do identical work, so the full job's
counts are those in the table multiplied by the column "times". "Device" counts the bytes requested
by the threads, "unique" counts each byte once; caches can serve the difference. The last three
columns are ratios tiny-llm / MLX: device bytes, threadgroup bytes, and instructions (integer
operations and memory accesses); "!" marks a ratio above its limit (`RatioLimits` in metal_jobs.py).
MLX has no paged attention, so paged attention is compared with tiny-llm's dense kernel.
"""

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from tiny_llm import UserError
from tools.metal_emulator import ToolMissingError

from .command import benchmark_parser, print_json, run_command
from .metal_attention import attention_jobs
from .metal_jobs import Job, run
from .metal_matmuls import matmul_jobs
from .metal_paged import paged_jobs

JOBS: list[Callable[[], list[Job]]] = [matmul_jobs, attention_jobs, paged_jobs]
COLUMNS = {
    "device_bytes": "device KB",
    "unique_device_bytes": "unique KB",
    "threadgroup_bytes": "threadgroup KB",
    "simd_operations": "simd ops",
    "barriers": "barriers",
    "matrix_multiply_adds": "matrix multiply-adds",
    "multiply_adds": "other multiply-adds",
    "integer_operations": "integer operations",
    "accesses": "accesses",
}
RATIOS = {"device_bytes": "device", "threadgroup_bytes": "threadgroup", "instructions": "instr."}


def _ratio(ours: int, mlx: int) -> float:
    """Ratio of two counts; 1 if both are zero."""
    return ours / mlx if mlx else 1.0 if ours == 0 else math.inf


def exceeded(row: dict[str, Any]) -> list[str]:
    """Columns of a row whose ratio exceeds its limit."""
    return [name for name in RATIOS if row["ratios"][name] > row["limits"][name]]


def compare(job: Job) -> dict[str, Any]:
    """Runs a job; returns its table row: each kernel's counts, ratios, limits."""
    ours, mlx = run(job.ours()), run(job.mlx())
    return {
        "job": job.name,
        "shape": job.shape,
        "slice": job.slice,
        "times": job.times,
        "kernel": job.kernel,
        "mlx_kernel": job.mlx_kernel,
        "peer": job.peer,
        "ours": asdict(ours),
        "mlx": asdict(mlx),
        "ratios": {name: _ratio(getattr(ours, name), getattr(mlx, name)) for name in RATIOS},
        "limits": asdict(job.limits),
    }


def show(row: dict[str, Any]) -> None:
    """Prints a job's two table lines: tiny-llm's kernel with the ratios, then the peer's kernel."""
    for side, kernel in (("ours", row["kernel"]), ("mlx", row["mlx_kernel"])):
        ours = side == "ours"
        cells = [row["job"], row["shape"], row["slice"], f"{row['times']:,}"] if ours else [""] * 4
        cells.append(kernel if ours else f"{row['peer']}: {kernel}")
        for field in COLUMNS:
            value = row[side][field]
            cells.append(f"{value / 1e3:,.1f}" if field.endswith("bytes") else f"{value:,}")
        for name in RATIOS:
            mark = " !" if name in exceeded(row) else ""
            cells.append(f"{row['ratios'][name]:.2f}{mark}" if ours else "")
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> int:
    """Runs the command; prints JSON last. Returns 1 if a limit is exceeded."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--only", default="", help="run only jobs whose name contains this")
    return run_command("metal_traffic", parser.parse_args(), run_jobs)


def run_jobs(args: argparse.Namespace) -> int:
    """Runs the selected jobs and prints the table."""
    jobs = [job for make in JOBS for job in make() if args.only in job.name]
    if not jobs:
        names = sorted({job.name for make in JOBS for job in make()})
        raise UserError(f"no job name contains '{args.only}'; the jobs are {', '.join(names)}.")
    columns = ["job", "shape", "slice", "times", "kernel", *COLUMNS.values(), *RATIOS.values()]
    print(f"| {' | '.join(columns)} |")
    print(f"|---|---|---|---:|---|{'---:|' * (len(columns) - 5)}")
    rows = []
    try:
        for job in jobs:
            rows.append(compare(job))
            show(rows[-1])
    except ToolMissingError as error:
        raise UserError(str(error)) from error
    return print_json({"rows": rows}, int(any(exceeded(row) for row in rows)))


if __name__ == "__main__":
    sys.exit(main())
