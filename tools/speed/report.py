"""Tables of `pdm run speed`, and the verdict on a learner's answer."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

Row = Mapping[str, float]


def matmuls_table(rows: Mapping[str, Row], with_shares: bool) -> Table:
    """A step's matmuls; `with_shares` adds shares, which reveal the answer."""
    table = Table("matmul", "MB", "median, ms", "minimum, ms")
    if with_shares:
        table.add_column("lower bound, ms")
        table.add_column("share")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, row in rows.items():
        cells = [f"{row['megabytes']:.1f}", _ms(row["median"]), _ms(row["minimum"])]
        if with_shares:
            cells += [_ms(row["least"]), percent(row["share"])]
        table.add_row(name, *cells)
    return table


def kernels_table(yours: Mapping[str, Row], ours: Row) -> Table:
    """The learner's kernels and the solution's best: times, rates, share of the limit, speedup."""
    table = Table(
        "kernel", "median, ms", "minimum, ms", "GB/s", "GFLOP/s", "share", "times as fast"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    first = next(iter(yours.values()), ours)
    for name, row in (*yours.items(), ("ours", ours)):
        table.add_row(
            name,
            _ms(row["median"]),
            _ms(row["minimum"]),
            f"{row['megabytes'] / 1e3 / row['minimum']:.2f}",
            f"{row['gigaflop'] / row['minimum']:.0f}",
            percent(row["share"]),
            f"{first['minimum'] / row['minimum']:.1f}",
        )
    return table


def print_answer(answer: str, slowed: str, found: Mapping[str, Any], console: Console) -> bool:
    """Prints and returns whether the answer names the slowed-down matmul."""
    console.print(matmuls_table(found["rows"], with_shares=True))
    right = answer == slowed
    console.print(f"{'[green]yes[/]' if right else '[red]no[/]'}: {slowed} does its work 4 times")
    console.print(f"furthest_from_roofline() of your roofline.py returns {found['slowest']}")
    return right


def percent(share: float) -> str:
    """Formats a share (0 to 1) as a percentage."""
    return f"{100 * share:.1f} %"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"
