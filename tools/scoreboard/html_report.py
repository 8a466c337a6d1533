"""HTML report of the scoreboard: one self-contained file, light or dark."""

import html
import math
from collections.abc import Sequence

from .score import Row, Score, all_rows, columns, format_speed, format_week, log_share

STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5b6675; --paper: #fff; --bar: #9db3cf;
  --yours: #2563b8; --line: #d7dde5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9f0; --soft: #9aa7b8; --paper: #14181f;
  --bar: #47597a; --yours: #7fb2ff; --line: #323a47; } }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 3rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
p, li { color: var(--soft); margin: .3rem 0; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .2rem 1.2rem .2rem 0; }
th { font-weight: 600; color: var(--soft); } tr { border-bottom: 1px solid var(--line); }
.panels svg { max-width: 22rem; } .runs { max-width: 36rem; }
.panels { display: grid; gap: 1rem 2rem;
  grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); }
svg { display: block; width: 100%; height: auto; overflow: visible; }
text { fill: var(--ink); font: 12px system-ui, sans-serif; }
.soft { fill: var(--soft); }
.bar { fill: var(--bar); } .yours { fill: var(--yours); }
.limit { fill: none; stroke: var(--soft); }
.axis { stroke: var(--line); }
.run { fill: none; stroke: var(--yours); stroke-width: 2; }
"""
WIDTH, LINE = 280, 36


def render_page(score: Score, history: Sequence[Score]) -> str:
    """The report as HTML; `history` has earlier runs, oldest first."""
    rows = all_rows(score, history)
    panels = "".join(
        f"<section><h2>{html.escape(label)}</h2>{_bars(rows, metric, score)}</section>"
        for metric, label in columns(rows).items()
    )
    notes = [f"{row.name}: {note}" for row in (score.yours, *score.others) for note in row.notes]
    listed = "".join(f"<li>{html.escape(note)}</li>" for note in [*notes, *score.remarks])
    weeks = "".join(
        f"<tr><td>{format_week(week)}</td><td>{done} of {total}</td>"
        f"<td>{score.tests[week][0]} of {score.tests[week][1]}</td></tr>"
        for week, (done, total) in score.tasks.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>tiny-llm: scoreboard</title><style>{STYLE}</style></head><body>"
        "<h1>Scoreboard</h1>"
        f"<p>{html.escape(score.model)} on {html.escape(score.machine)}, {score.when[:10]}. Tokens "
        "per second; a bar's length is the logarithm of the speed.</p>"
        f'<div class="panels">{panels}</div>'
        f"<h2>Correctness</h2><table><tr><th>week</th><th>tasks done</th><th>tests that pass</th>"
        f"</tr>{weeks}</table>{_runs(score, history)}<h2>Notes</h2><ul>{listed}</ul>"
        "</body></html>\n"
    )


def _bars(rows: Sequence[Row], metric: str, score: Score) -> str:
    """One bar per row with the metric: name above, speed at the right."""
    measured = [row for row in rows if metric in row.speeds]
    if not measured:
        return "<p>not measured</p>"
    speeds = [row.speeds[metric] for row in measured]
    parts = []
    for index, row in enumerate(measured):
        y, speed = index * LINE, row.speeds[metric]
        width = WIDTH * log_share(speed, speeds)
        kind = "yours" if row is score.yours else "limit" if "limit" in row.name else ""
        parts.append(
            f'<text class="soft" x="0" y="{y + 12}">{html.escape(row.name)}</text>'
            f'<text x="{WIDTH}" y="{y + 12}" text-anchor="end">{format_speed(speed)}</text>'
            f'<rect class="bar {kind}" x="0" y="{y + 17}" width="{width:.1f}" height="10" rx="2"/>'
        )
    label = ", ".join(f"{row.name} {format_speed(row.speeds[metric])}" for row in measured)
    return (
        f'<svg viewBox="0 0 {WIDTH} {len(measured) * LINE}" role="img" '
        f'aria-label="{html.escape(label)}">{"".join(parts)}</svg>'
    )


def _runs(score: Score, history: Sequence[Score]) -> str:
    """The learner's decoding speed by run; empty with fewer than two runs of this model."""
    runs = [
        run
        for run in [*history, score]
        if run.model == score.model
        and run.machine == score.machine
        and "decode" in run.yours.speeds
    ]
    if len(runs) < 2:
        return ""
    speeds = [run.yours.speeds["decode"] for run in runs]
    low, high = math.floor(math.log10(min(speeds))), math.ceil(math.log10(max(speeds)))
    high = max(high, low + 1)
    width, height, left = 560, 150, 44

    def point(index: int, speed: float) -> tuple[float, float]:
        x = left + (width - left - 8) * index / (len(runs) - 1)
        return x, height - height * (math.log10(speed) - low) / (high - low)

    lines = "".join(
        f'<line class="axis" x1="{left}" x2="{width}" y1="{y:g}" y2="{y:g}"/>'
        f'<text class="soft" x="{left - 6}" y="{y + 4:g}" text-anchor="end">{10**power:g}</text>'
        for power in range(low, high + 1)
        for y in [point(0, 10.0**power)[1]]
    )
    points = [point(index, speed) for index, speed in enumerate(speeds)]
    dots = "".join(
        f'<circle class="yours" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{run.when[:10]}, week '
        f"{run.week}: {format_speed(speed)}</title></circle>"
        for (x, y), run, speed in zip(points, runs, speeds, strict=True)
    )
    weeks = [
        f'<text class="soft" x="{x:.1f}" y="{height + 18}" text-anchor="middle">'
        f"week {run.week}</text>"
        for index, ((x, _), run) in enumerate(zip(points, runs, strict=True))
        if index == 0 or run.week != runs[index - 1].week
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return (
        f"<h2>Your decoding speed by run</h2>"
        f'<svg class="runs" viewBox="0 0 {width} {height + 24}" role="img" '
        f'aria-label="{len(runs)} runs">'
        f'{lines}<polyline class="run" points="{path}"/>{dots}{"".join(weeks)}</svg>'
    )
