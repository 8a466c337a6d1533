"""Agreement between another system's predicted tokens and ours."""

from dataclasses import astuple, dataclass

import numpy as np


@dataclass(frozen=True)
class Agreement:
    """Counts of compared tokens, equal tokens, ties, outputs and equal outputs."""

    tokens: int = 0
    equal: int = 0
    ties: int = 0
    answers: int = 0
    equal_answers: int = 0

    def __add__(self, other: "Agreement") -> "Agreement":
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Agreement(*(a + b for a, b in pairs))

    def __str__(self) -> str:
        return (
            f"{self.equal} of {self.tokens} predictions are equal, {self.ties} more are ties; "
            f"{self.equal_answers} of {self.answers} greedy outputs are equal token for token"
        )

    @property
    def is_whole(self) -> bool:
        """Whether all predictions agree, ties included."""
        return self.equal + self.ties == self.tokens


def agreement(
    logits: np.ndarray, predicted: list[int], tie: np.ndarray, answer: slice = slice(None)
) -> Agreement:
    """Compares predicted tokens with our most likely ones.

    Args:
        logits: our logits, L×V.
        predicted: L tokens.
        tie: largest distance below the maximum logit that counts as a tie, L numbers.
        answer: slice of L with the generated tokens.
    """
    ours = logits.argmax(-1)
    theirs = np.array(predicted)
    behind = logits.max(-1) - np.take_along_axis(logits, theirs[:, None], -1)[:, 0]
    return Agreement(
        tokens=len(theirs),
        equal=int((ours == theirs).sum()),
        ties=int(((ours != theirs) & (behind <= tie)).sum()),
        answers=1,
        equal_answers=int((ours == theirs)[answer].all()),
    )
