"""Terminal output of the scoreboard."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from .score import Score, all_rows, columns, format_speed, format_week, log_share

BAR = 10  # length of the longest bar, in characters


def print_score(score: Score, history: Sequence[Score], console: Console) -> None:
    """Prints tasks and tests by week, the engines' speeds, and the remarks."""
    for week, (done, total) in score.tasks.items():
        passed, run = score.tests[week]
        name = format_week(week)
        console.print(f"week {name}: {done} of {total} tasks done, {passed} of {run} tests pass")
    rows = all_rows(score, history)
    table = Table(title=f"{score.model} on {score.machine}")
    table.add_column("tokens per second", no_wrap=True)
    labels = columns(rows)
    bars = console.width >= 25 * (len(labels) + 1)
    for label in labels.values():
        table.add_column(label, justify="right")
        if bars:
            table.add_column("", no_wrap=True)
    for row in rows:
        cells = []
        for metric in labels:
            speed = row.speeds.get(metric)
            cells.append("–" if speed is None else format_speed(speed))
            if bars:
                speeds = [other.speeds[metric] for other in rows if metric in other.speeds]
                share = 0.0 if speed is None else log_share(speed, speeds)
                cells.append("█" * round(BAR * share))
        table.add_row(row.name, *cells, style="bold" if row is score.yours else None)
    console.print(table)
    if bars:
        console.print("A bar's length is the logarithm of the speed.", style="dim")
    for row in (score.yours, *score.others):
        for note in row.notes:
            console.print(f"{row.name}: {note}", style="dim", markup=False)
    for remark in score.remarks:
        console.print(remark, style="dim", markup=False)
