"""A synthetic workload, and the clock that measures how it is served."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import UserError


@dataclass(frozen=True)
class LengthRange:
    """Lengths are drawn from `low` to `high`, both included.

    Args:
        what: named in messages, as in the flags --min-<what>-len and --max-<what>-len.

    Raises:
        UserError: `low` is below 1 or above `high`.
    """

    what: str
    low: int
    high: int

    def __post_init__(self) -> None:
        low, high = f"--min-{self.what}-len", f"--max-{self.what}-len"
        if self.low < 1:
            raise UserError(f"{low} is {self.low}; it must be at least 1.")
        if self.high < self.low:
            raise UserError(f"{high} is {self.high}; it must be at least {low}, {self.low}.")


@dataclass(frozen=True)
class Workload:
    """Sequences to serve.

    Attributes:
        prompts: token ids.
        output_lens: how many tokens to generate after each.
    """

    prompts: list[list[int]]
    output_lens: list[int]

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts."""
        return sum(map(len, self.prompts))

    @property
    def output_tokens(self) -> int:
        """Of all answers."""
        return sum(self.output_lens)


def synthetic_workload(
    num_seqs: int, inputs: LengthRange, outputs: LengthRange, vocab_size: int, seed: int
) -> Workload:
    """`num_seqs` sequences of random ids; the same arguments give the same ones everywhere."""
    rng = np.random.default_rng(seed)
    input_lens = rng.integers(inputs.low, inputs.high, num_seqs, endpoint=True)
    output_lens = rng.integers(outputs.low, outputs.high, num_seqs, endpoint=True)
    prompts = [rng.integers(0, vocab_size, length).tolist() for length in input_lens]
    return Workload(prompts, output_lens.tolist())


class TimestampTokenizer:
    """Stands in for a tokenizer, and notes when each token comes instead of what it says.

    Attributes:
        eos_token_ids: none; a sequence goes on to the length it was given.
        sequences: for each sequence that was begun, the times of its tokens, in seconds.
    """

    eos_token_ids: frozenset[int] = frozenset()

    def __init__(self) -> None:
        self.sequences: list[list[float]] = []

    @property
    def detokenizer(self) -> "_TimestampDetokenizer":
        """A new one for each sequence, as mlx_lm's tokenizers give."""
        self.sequences.append([])
        return _TimestampDetokenizer(self.sequences[-1])


class _TimestampDetokenizer:
    """A detokenizer that notes the time."""

    text = last_segment = ""

    def __init__(self, times: list[float]):
        self._times = times

    def add_token(self, token: int) -> None:
        self._times.append(time.perf_counter())

    def finalize(self) -> None:
        """There is no text to end."""


def latencies(sequences: Sequence[Sequence[float]], started: float) -> dict[str, Any]:
    """Milliseconds to the first token and between tokens: median and 95th percentile.

    Args:
        sequences: the times of each one's tokens.
        started: when all of them arrived, so that waiting for a slot counts; on the same clock.

    Returns:
        `ttft_ms_median`, `ttft_ms_p95`, `itl_ms_median` and `itl_ms_p95`; the gaps are None if no
        sequence has two tokens.
    """
    first = [times[0] - started for times in sequences if times]
    gaps = [gap for times in sequences for gap in np.diff(times)]
    result = {}
    for name, seconds in (("ttft_ms", first), ("itl_ms", gaps)):
        for key, percent in (("median", 50), ("p95", 95)):
            found = round(float(np.percentile(seconds, percent)) * 1e3, 3) if seconds else None
            result[f"{name}_{key}"] = found
    return result
