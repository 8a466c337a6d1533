"""Draft token verification, and acceptance statistics."""

from collections.abc import Sequence
from dataclasses import dataclass


def accepted_tokens(draft_tokens: Sequence[int], sampled: Sequence[int]) -> Sequence[int]:
    """Returns a step's tokens: accepted draft tokens, then one from the target.

    `sampled[i]` is the target's sample after the first i draft tokens, so it is valid only if those
    are accepted. The longest prefix of draft tokens equal to the samples is accepted.

    Args:
        draft_tokens: draft tokens, possibly none.
        sampled: the target's samples, one more than `draft_tokens`.
    """
    if list(draft_tokens) == list(sampled[: len(draft_tokens)]):
        return sampled  # all draft tokens are accepted, or there are none
    # [task 5.6.1 verify]
    num_accepted = 0
    while draft_tokens[num_accepted] == sampled[num_accepted]:
        num_accepted += 1
    return sampled[: num_accepted + 1]
    # [/task 5.6.1 verify]


@dataclass
class SpeculationStatistics:
    """Acceptance statistics of one generation, or of an engine since its start."""

    target_steps: int = 0  # target model calls, including prefill
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    def __str__(self) -> str:
        share = (
            f" ({self.num_accepted_tokens / self.num_draft_tokens:.0%})"
            if self.num_draft_tokens
            else ""
        )
        return (
            f"draft tokens: {self.num_accepted_tokens} of {self.num_draft_tokens} accepted{share}, "
            f"{self.target_steps} target steps"
        )
