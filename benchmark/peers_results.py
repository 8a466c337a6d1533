"""Results of `peers`: seconds by system and metric, and derived figures."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmark.model_costs import ModelCosts

from .metrics import Metric
from .roofline import Machine, Peaks, best
from .systems.client import Ready
from .timing import Times, percent

OURS = "tiny-llm"


@dataclass
class Results:
    """Measurements of one run, collected incrementally."""

    shape: str
    costs: ModelCosts
    systems: list[str]
    metrics: list[Metric]
    isa: str = "native"  # tiny-llm's instruction set; see `Machine.kernel_peaks`
    exact: Sequence[str] = (OURS,)  # systems that run tiny-llm's kernels with 16-bit activations
    # Limits before each round and after the last one.
    machines: list[Machine] = field(default_factory=list)
    seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    loads: dict[str, list[Ready]] = field(default_factory=dict)
    checkpoint_bytes: dict[str, int] = field(default_factory=dict)
    ready: dict[str, Ready] = field(default_factory=dict)
    notes: dict[tuple[str, str], str] = field(default_factory=dict)
    missing: dict[tuple[str, str], str] = field(default_factory=dict)

    def describe(self, system: str, ready: Ready) -> None:
        """Stores the version and settings that a worker reported."""
        self.ready[system] = ready

    def add(self, system: str, metric: Metric, reply: dict[str, Any]) -> None:
        """Stores a worker's reply: a time or a failure."""
        if "seconds" not in reply:
            self.exclude(system, metric, reply.get("unsupported") or reply["failed"])
            return
        self.seconds.setdefault((system, metric.name), []).append(reply["seconds"])
        if "note" in reply:
            self.notes[system, metric.name] = reply["note"]

    def add_load(self, system: str, ready: Ready, checkpoint_bytes: int) -> None:
        """Stores the time and memory of a process started for the load metric."""
        self.checkpoint_bytes[system] = checkpoint_bytes
        self.loads.setdefault(system, []).append(ready)
        self.seconds.setdefault((system, "load"), []).append(ready.process_seconds)
        self.ready.setdefault(system, ready)

    def exclude(self, system: str, metric: Metric, reason: str) -> None:
        """Excludes a metric from further measurements of a system."""
        self.missing[system, metric.name] = reason

    def reason(self, system: str, metric: Metric) -> str | None:
        """Reason why a metric is excluded, or None."""
        return self.missing.get((system, metric.name))

    def latest(self, system: str, metric: Metric) -> str:
        """A system's last measurement of a metric, for progress output."""
        reason = self.reason(system, metric)
        if reason is not None:
            return f"{metric.label}: {reason}"
        seconds = self.seconds[system, metric.name][-1]
        if metric.kind == "load":
            return f"{metric.label}: {seconds:.1f} s"
        return f"{metric.label}: {metric.tokens_per_second(seconds):.4g} tokens/s"

    @property
    def machine(self) -> Machine | None:
        """The machine's limits, best of all rounds; None if unmeasured."""
        return best(self.machines)

    def times(self, system: str, metric: Metric) -> Times | None:
        """Median and minimum of the rounds; None if unmeasured."""
        seconds = self.seconds.get((system, metric.name))
        return Times.of(seconds) if seconds else None

    def throughput(self, system: str, metric: Metric) -> tuple[float, float] | None:
        """Tokens per second from median and minimum time; None if unmeasured."""
        times = self.times(system, metric)
        if times is None or metric.kind == "load":
            return None
        return metric.tokens_per_second(times.median), metric.tokens_per_second(times.minimum)

    def ratio(self, peer: str, metric: Metric) -> float | None:
        """Ratio of tiny-llm's median speed to a peer's; None if either is missing."""
        ours, theirs = self.times(OURS, metric), self.times(peer, metric)
        return theirs.median / ours.median if ours and theirs else None

    def share(self, system: str, metric: Metric, own_weights: bool = False) -> float | None:
        """Fraction of the machine's limit that a system reached; None if unknown.

        With `own_weights`, the limit assumes the system's weight format, not the checkpoint's.
        """
        throughput, machine = self.throughput(system, metric), self.machine
        if throughput is None or machine is None:
            return None
        bits = self.ready[system].weight_bits if own_weights else None
        return throughput[0] / metric.bound(self.costs, machine, bits, self._peaks(system, machine))

    def share_of_round_limits(self, system: str, metric: Metric) -> float | None:
        """Median fraction of the limits measured around each round.

        A round's limits are the higher of those before and after it. If memory bandwidth varies,
        this compares a system with its round's bandwidth; `share` uses the best of all rounds.
        """
        seconds = self.seconds.get((system, metric.name))
        if not seconds or not self.machines:
            return None
        rounds = [best(self.machines[i : i + 2]) for i in range(len(self.machines))]
        return statistics.median(
            metric.tokens_per_second(value)
            / metric.bound(self.costs, machine, peaks=self._peaks(system, machine))
            for value, machine in zip(seconds, rounds, strict=False)
            if machine is not None
        )

    def _peaks(self, system: str, machine: Machine) -> Peaks:
        """Peaks of tiny-llm's 16-bit kernels; otherwise, the machine's highest peaks."""
        return machine.kernel_peaks(self.isa) if system in self.exact else machine.highest_peaks

    def above_limits(self) -> list[str]:
        """Measurements above their round's limits: errors of the benchmark."""
        shares = (
            (f"{system}, {metric.label}", self.share_of_round_limits(system, metric) or 0.0)
            for system in self.systems
            for metric in self.metrics
            if metric.kind != "load"
        )
        return [f"{name} {percent(share, 1)}" for name, share in shares if share > 1]

    def summary(self) -> dict[str, Any]:
        """Throughputs, ratios and shares by name: the last line of output."""
        timed = [metric for metric in self.metrics if metric.kind != "load"]
        peers = [system for system in self.systems if system != OURS]
        return {
            "shape": self.shape,
            "tokens_per_s": {
                system: _rounded({m.name: (self.throughput(system, m) or [None])[0] for m in timed})
                for system in self.systems
            },
            "ratio_to": {
                peer: _rounded({metric.name: self.ratio(peer, metric) for metric in self.metrics})
                for peer in peers
            },
            "share_of_roofline": {
                system: _rounded({metric.name: self.share(system, metric) for metric in timed})
                for system in self.systems
            },
            "share_of_round_limits": {
                system: _rounded({m.name: self.share_of_round_limits(system, m) for m in timed})
                for system in self.systems
            },
            "machine": asdict(self.machine) if self.machine else None,
        }

    def as_json(self) -> dict[str, Any]:
        """All measurements, and the summary."""
        return {
            "summary": self.summary(),
            "costs": asdict(self.costs),
            "machines": [asdict(machine) for machine in self.machines],
            "ready": {system: asdict(ready) for system, ready in self.ready.items()},
            "loads": {
                system: [asdict(ready) for ready in loads] for system, loads in self.loads.items()
            },
            "checkpoint_bytes": self.checkpoint_bytes,
            "seconds": _by_system(self.seconds),
            "notes": _by_system(self.notes),
            "missing": _by_system(self.missing),
        }


def _rounded(values: dict[str, float | None]) -> dict[str, float]:
    """Values rounded to four significant digits, without None values."""
    return {name: float(f"{value:.4g}") for name, value in values.items() if value is not None}


def _by_system(values: dict[tuple[str, str], Any]) -> dict[str, dict[str, Any]]:
    """Nests a dictionary with (system, metric) keys by system."""
    nested: dict[str, dict[str, Any]] = {}
    for (system, metric), value in values.items():
        nested.setdefault(system, {})[metric] = value
    return nested
