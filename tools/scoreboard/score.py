"""Results of a scoreboard run, and comparison with earlier runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmark.metrics import Metric
from tools.course.tasks import OPTIONAL_WEEKS

METRICS = (
    Metric("prefill", "prefill 128", "prefill", 128),
    Metric("decode", "decode at 128", "decode", 128),
    Metric("batch", "decode, 4 at once", "decode", 128, 4),
)

GOODPUT = "goodput"


@dataclass(frozen=True)
class Row:
    """Speeds of one engine, such as "yours, week 2".

    `speeds` are tokens per second by metric, and goodput in requests per second; unmeasured metrics
    are absent. `notes` are remarks on a measurement or its absence.
    """

    name: str
    speeds: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Score:
    """Results of one scoreboard run.

    Attributes:
        when: date and time, ISO 8601; "" before it is stored.
        week: week of the learner's model; 0 if none runs.
        tasks: [completed tasks, shown tasks], by week.
        tests: [passed tests, run tests], by week.
        others: rows of the other engines, then of the machine's limit.
    """

    when: str
    model: str
    machine: str
    week: int
    tasks: dict[str, list[int]]
    tests: dict[str, list[int]]
    yours: Row
    others: list[Row]
    remarks: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Converts to a history entry, without the time."""
        return {name: value for name, value in asdict(self).items() if name != "when"}

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> "Score":
        """Parses a history entry."""
        known = {name: value for name, value in entry.items() if name != "kind"}
        return cls(
            **{
                **known,
                "yours": Row(**entry["yours"]),
                "others": [Row(**row) for row in entry["others"]],
            }
        )


def earlier_rows(score: Score, history: Sequence[Score]) -> list[Row]:
    """The learner's earlier engines: last runs of this and of each earlier week.

    `history` is oldest first; runs of other models and machines are ignored.
    """
    latest = {
        before.week: before
        for before in history
        if (before.model, before.machine) == (score.model, score.machine) and before.yours.speeds
    }
    return [
        Row(f"{latest[week].yours.name}, {latest[week].when[:10]}", latest[week].yours.speeds)
        for week in sorted(latest, reverse=True)
        if week <= score.week
    ]


def all_rows(score: Score, history: Sequence[Score]) -> list[Row]:
    """All rows: the learner's current and earlier engines, other engines, the machine's limit."""
    yours = [score.yours] if score.yours.speeds else []
    return [*yours, *earlier_rows(score, history), *score.others]


def columns(rows: Sequence[Row]) -> dict[str, str]:
    """Labels of the metrics; goodput only if it was measured for an engine."""
    labels = {metric.name: metric.label for metric in METRICS}
    if any(GOODPUT in row.speeds for row in rows):
        labels[GOODPUT] = "goodput, requests/s"
    return labels


def log_share(speed: float, speeds: Sequence[float]) -> float:
    """Logarithmic length of an engine's bar: 1 for the fastest engine."""
    lowest = min(speeds) / 10  # so that the slowest engine has a visible bar
    return math.log(speed / lowest) / math.log(max(speeds) / lowest)


def format_week(week: str) -> str:
    """Week number, marked if optional."""
    return f"{week} (optional)" if int(week) in OPTIONAL_WEEKS else week


def format_speed(speed: float) -> str:
    """Formats with two decimals below 10, one below 100, else none: 0.52, 19.4, 119, 10,404."""
    return f"{speed:.2f}" if speed < 10 else f"{speed:.1f}" if speed < 100 else f"{speed:,.0f}"
