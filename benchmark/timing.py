"""Timing: warm-up, then the median and minimum of several runs."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """Seconds per run; other processes disturb the minimum least."""

    median: float
    minimum: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Times":
        """Median and minimum of at least one measurement."""
        return cls(statistics.median(seconds), min(seconds))


def measure(run: Callable[[], object], repeats: int, warm_up: int = 1) -> Times:
    """Times `repeats` runs after `warm_up` uncounted ones."""
    return Times.of(step_seconds(run, repeats, warm_up=warm_up))


def step_seconds(
    step: Callable[[], object], steps: int, limit_s: float = float("inf"), warm_up: int = 1
) -> list[float]:
    """Seconds per step of up to `steps` steps; stops after `limit_s` once three are timed."""
    for _ in range(warm_up):
        step()
    seconds: list[float] = []
    while len(seconds) < steps and (sum(seconds) < limit_s or len(seconds) < 3):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return seconds


def percent(part: float, whole: float) -> str:
    """Formats `part` as a percentage of `whole`."""
    return f"{100 * part / whole:.0f} %"
