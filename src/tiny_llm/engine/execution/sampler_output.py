"""The tokens that a step chooses, and what else is read of its logits, on the way to Python.

An array can be read when everything is computed that it was sent to the device with. So what is
read of a step is sent by itself, before the step after it is.
"""

from collections.abc import Sequence

import mlx.core as mx

from ..scheduling.outputs import Logprobs
from .sampler import SamplingRow, gather_logprobs, logprobs_to_dicts, sample_tokens, to_ints


class SamplerOutput:
    """One token for each row; it is on its way when the object is made.

    Args:
        logits: R×V.
        rows: R places in answers.

    Attributes:
        tokens: R ids, which need not be computed yet.
    """

    def __init__(self, logits: mx.array, rows: Sequence[SamplingRow]):
        self.tokens = sample_tokens(logits, rows)
        self._logits = logits
        own = mx.take_along_axis(logits, self.tokens[:, None], axis=1)[:, 0]  # R
        self._is_nan = mx.isnan(own)
        # Rows whose requests ask for log-probabilities, and how many.
        self._num_logprobs: dict[int, int] = {
            index: row.params.logprobs
            for index, row in enumerate(rows)
            if row.params.logprobs is not None
        }
        self._gathered: tuple[mx.array, ...] = ()
        if self._num_logprobs:
            asked = mx.array(list(self._num_logprobs))
            num_logprobs = max(self._num_logprobs.values())
            self._gathered = gather_logprobs(logits[asked], num_logprobs, self.tokens[asked])
        mx.async_eval(self.tokens, self._is_nan, *self._gathered)

    def read(self) -> tuple[list[int], list[int], dict[int, Logprobs]]:
        """Waits for all of it.

        Returns:
            (the token of each row, the rows from which none could be chosen because they are not
            numbers, log-probabilities by row for those that ask for them).
        """
        chosen = to_ints(self.tokens)
        broken = rows_with_nan(self._logits, chosen, self._is_nan)
        if not self._gathered:
            return chosen, broken, {}
        ids, logprobs = self._gathered
        found = logprobs_to_dicts(ids, logprobs, list(self._num_logprobs.values()))
        return chosen, broken, dict(zip(self._num_logprobs, found, strict=True))


def rows_with_nan(logits: mx.array, chosen: Sequence[int], chosen_is_nan: mx.array) -> list[int]:
    """The rows, of R×V, from which no token could be chosen, because they are not numbers.

    A broken hidden state makes its whole row NaN, and the token 0 is chosen, or one that is NaN. So
    only such rows are looked at: reading all logits would take longer than choosing the tokens.

    Args:
        logits: R×V.
        chosen: the token of each row.
        chosen_is_nan: R, whether its logit is no number.
    """
    is_nan: list[bool] = chosen_is_nan.tolist()  # type: ignore[assignment]
    suspects = [row for row, token in enumerate(chosen) if token == 0 and not is_nan[row]]
    for row in suspects:
        is_nan[row] = bool(mx.any(mx.isnan(logits[row])))
    return [row for row, broken in enumerate(is_nan) if broken]
