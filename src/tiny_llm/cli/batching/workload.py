"""Synthetic workload, and a tokenizer that timestamps its tokens."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import UserError


@dataclass(frozen=True)
class LengthRange:
    """Inclusive range of sequence lengths, in tokens."""

    kind: str  # "input" or "output", as in the flags --min-<kind>-len and --max-<kind>-len
    low: int  # at least 1
    high: int

    def __post_init__(self) -> None:
        if self.high < self.low:
            raise UserError(
                f"--max-{self.kind}-len must be at least --min-{self.kind}-len ({self.low}), got "
                f"{self.high}."
            )


@dataclass(frozen=True)
class Workload:
    """A benchmark's sequences: the prompts' token ids, and the output lengths."""

    prompts: list[list[int]]
    output_lens: list[int]

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def output_tokens(self) -> int:
        return sum(self.output_lens)


def synthetic_workload(
    num_seqs: int, inputs: LengthRange, outputs: LengthRange, vocab_size: int, seed: int
) -> Workload:
    """Draws random lengths and prompt token ids; deterministic across platforms."""
    rng = np.random.default_rng(seed)
    input_lens = rng.integers(inputs.low, inputs.high, num_seqs, endpoint=True)
    output_lens = rng.integers(outputs.low, outputs.high, num_seqs, endpoint=True)
    prompts = [rng.integers(0, vocab_size, length).tolist() for length in input_lens]
    return Workload(prompts, output_lens.tolist())


class TimestampTokenizer:
    """Tokenizer stub that records the time of each token instead of its text."""

    eos_token_ids: frozenset[int] = frozenset()  # every sequence runs to its output length

    def __init__(self) -> None:
        self.sequences: list[list[float]] = []  # token times of each started sequence, in seconds

    @property
    def detokenizer(self) -> "_TimestampDetokenizer":
        """A new detokenizer per access, as in mlx_lm's tokenizers."""
        self.sequences.append([])
        return _TimestampDetokenizer(self.sequences[-1])


class _TimestampDetokenizer:
    text = last_segment = ""

    def __init__(self, times: list[float]):
        self._times = times

    def add_token(self, token: int) -> None:
        self._times.append(time.perf_counter())

    def finalize(self) -> None:
        """No-op."""


def latencies(sequences: Sequence[Sequence[float]], started: float) -> dict[str, Any]:
    """Summarizes time to first token ("ttft") and inter-token latency ("itl").

    Args:
        sequences: token times of each sequence, in seconds.
        started: arrival time of all sequences, on the same clock; latencies include queueing.
    """
    first = [times[0] - started for times in sequences if times]
    gaps = [gap for times in sequences for gap in np.diff(times)]
    return summarize({"ttft": first, "itl": gaps}, np.percentile)


def summarize(
    latencies: Mapping[str, Sequence[float]], percentile: Callable[[Sequence[float], float], Any]
) -> dict[str, float | None]:
    """Median and 95th percentile of each list of latencies.

    Args:
        latencies: seconds, by name.
        percentile: called with a list and a percentage.

    Returns:
        `<name>_ms_median` and `<name>_ms_p95` in milliseconds; None for an empty list.
    """
    return {
        f"{name}_ms_{key}": round(float(percentile(values, percent)) * 1e3, 3) if values else None
        for name, values in latencies.items()
        for key, percent in (("median", 50), ("p95", 95))
    }
