"""Benchmark metrics: workload and roofline bound of each."""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from benchmark.model_costs import ModelCosts

from .roofline import Limits, Machine, Peaks
from .timing import Times


@dataclass(frozen=True)
class Metric:
    """A measurement of a model's speed.

    Attributes:
        name: name on the command line and in the JSON.
        kind: "prefill" runs a prompt, "decode" runs single-token steps of a batch with a context,
            "load" starts a process and waits for its first token.
        tokens: length of the prompt, or of each sequence's context.
        batch: sequences decoded together.
        is_long: measured only on request, because it takes minutes.
    """

    name: str
    label: str
    kind: Literal["prefill", "decode", "load"]
    tokens: int = 0
    batch: int = 1
    is_long: bool = False

    @property
    def request(self) -> dict[str, Any]:
        """Request to send to a worker."""
        return {"kind": self.kind, "tokens": self.tokens, "batch": self.batch}

    def tokens_per_second(self, seconds: float) -> float:
        """Throughput, given the seconds per prompt or per decoding step."""
        return (self.tokens if self.kind == "prefill" else self.batch) / seconds

    def bound(
        self,
        costs: ModelCosts,
        machine: Machine,
        weight_bits: float | None = None,
        peaks: Peaks | None = None,
    ) -> float:
        """Roofline bound on tokens per second.

        Args:
            weight_bits: bits per weight in memory; default: the checkpoint's.
            peaks: peaks of the instructions in use; default: `peak_gflop_per_s`.
        """
        if self.kind == "prefill":
            n_bytes = costs.prefill_bytes(self.tokens, weight_bits)
            flops, attention = (
                costs.prefill_flops(self.tokens),
                costs.prefill_attention_flops(self.tokens),
            )
        else:
            n_bytes = costs.decode_bytes(self.batch, self.tokens, weight_bits)
            flops = costs.decode_flops(self.batch, self.tokens)
            attention = costs.decode_attention_flops(self.batch, self.tokens)
        return self.tokens_per_second(machine.seconds(n_bytes, flops - attention, attention, peaks))


METRICS = {
    metric.name: metric
    for metric in (
        Metric("prefill-512", "prefill 512", "prefill", 512),
        Metric("prefill-4096", "prefill 4,096", "prefill", 4096),
        Metric("prefill-16384", "prefill 16K", "prefill", 16384, is_long=True),
        Metric("prefill-32768", "prefill 32K", "prefill", 32768, is_long=True),
        Metric("decode-128", "decode", "decode", 128),
        Metric("decode-4096", "decode at 4,096", "decode", 4096),
        Metric("decode-128-batch-4", "decode, batch 4", "decode", 128, 4),
        Metric("decode-128-batch-16", "decode, batch 16", "decode", 128, 16),
        Metric("decode-4096-batch-4", "batch 4 at 4,096", "decode", 4096, 4, is_long=True),
        Metric("decode-4096-batch-16", "batch 16 at 4,096", "decode", 4096, 16, is_long=True),
        Metric("load", "load to first token", "load"),
    )
}

DEFAULT_METRICS = [name for name, metric in METRICS.items() if not metric.is_long]


def throughput(
    metric: Metric, times: Times, costs: ModelCosts, machine: Machine | None, limits: Limits
) -> tuple[dict[str, Any], str]:
    """Tokens per second for the JSON, and roofline share for the table.

    Args:
        machine: limits before and after the measurement; None leaves the share empty.
        limits: the kernels' instruction set, and the record of shares above 100 %.
    """
    row: dict[str, Any] = {
        "tokens_per_s": metric.tokens_per_second(times.median),
        "best_tokens_per_s": metric.tokens_per_second(times.minimum),
    }
    if machine is None:
        return row, ""
    peaks = machine.kernel_peaks(limits.isa, quantized=costs.weight_bits < 16)
    row["roofline_tokens_per_s"] = metric.bound(costs, machine, peaks=peaks)
    return row, limits.share(metric.label, row["tokens_per_s"], row["roofline_tokens_per_s"])


def names(known: Iterable[str]) -> Callable[[str], list[str]]:
    """argparse type: comma-separated list of known names."""

    def parse(text: str) -> list[str]:
        given = text.split(",")
        unknown = [name for name in given if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(
                f"unknown name '{unknown[0]}'; choose from {', '.join(known)}"
            )
        return given

    return parse
