"""Agreement of another system's predicted tokens with tiny-llm's."""

from dataclasses import astuple, dataclass

import numpy as np


@dataclass(frozen=True)
class Agreement:
    """Counts of compared, equal and tied tokens, and of compared and equal greedy outputs."""

    tokens: int = 0
    equal: int = 0
    ties: int = 0
    outputs: int = 0
    equal_outputs: int = 0

    def __add__(self, other: "Agreement") -> "Agreement":
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Agreement(*(a + b for a, b in pairs))

    def __str__(self) -> str:
        return (
            f"{self.equal} of {self.tokens} predictions are equal, {self.ties} more are ties; "
            f"{self.equal_outputs} of {self.outputs} greedy outputs are equal token for token"
        )

    @property
    def all_agree(self) -> bool:
        """Whether all predictions are equal or ties."""
        return self.equal + self.ties == self.tokens


def agreement(
    logits: np.ndarray, predicted: list[int], tie: np.ndarray, output: slice = slice(None)
) -> Agreement:
    """Compares another system's predicted tokens with tiny-llm's.

    Args:
        logits: tiny-llm's logits, tokens × vocabulary size.
        predicted: the other system's prediction for each row of `logits`.
        tie: per token, the distance from the largest logit within which a prediction is a tie.
        output: slice of the rows that predict the greedy output; default: all rows.
    """
    ours = logits.argmax(-1)
    theirs = np.array(predicted)
    gap = logits.max(-1) - np.take_along_axis(logits, theirs[:, None], -1)[:, 0]
    return Agreement(
        tokens=len(theirs),
        equal=int((ours == theirs).sum()),
        ties=int(((ours != theirs) & (gap <= tie)).sum()),
        outputs=1,
        equal_outputs=int((ours == theirs)[output].all()),
    )
