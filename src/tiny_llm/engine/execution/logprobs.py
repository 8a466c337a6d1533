"""Log-probabilities of the top-k tokens and the chosen one.

The engine reports the model's log-probabilities before any logits processor.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ...sampler import log_softmax
from ..scheduling.outputs import Logprobs


def top_logprobs(logits: mx.array, counts: Sequence[int], chosen: Sequence[int]) -> list[Logprobs]:
    """Computes log-probabilities for each row's top tokens and its chosen token.

    Args:
        logits: R×V, unprocessed.
        counts: number of top tokens for each row.
        chosen: the chosen token of each row.

    Returns:
        For each row, log-probabilities by token id, in descending order; the chosen token is last
        if it is not among the top tokens.
    """
    gathered = gather_logprobs(logits, max(counts), mx.array(list(chosen)))
    return logprobs_to_dicts(*gathered, counts)


def gather_logprobs(
    logits: mx.array, num_logprobs: int, chosen: mx.array
) -> tuple[mx.array, mx.array]:
    """Gathers each row's top tokens and then its chosen token, with log-probabilities.

    Args:
        logits: R×V.
        num_logprobs: number of top tokens per row, K; clamped to V.
        chosen: R token ids.

    Returns:
        Token ids and log-probabilities, both R×(K + 1).
    """
    logprobs = log_softmax(logits)
    num_logprobs = min(num_logprobs, logits.shape[-1])
    ids = chosen.astype(mx.int32)[:, None]
    if num_logprobs:
        top_ids = mx.argsort(-logprobs, axis=-1)[:, :num_logprobs].astype(mx.int32)
        ids = mx.concatenate([top_ids, ids], axis=1)
    return ids, mx.take_along_axis(logprobs, ids, axis=1)


def logprobs_to_dicts(ids: mx.array, logprobs: mx.array, counts: Sequence[int]) -> list[Logprobs]:
    """Converts the result of `gather_logprobs` to dictionaries of `counts` top tokens each."""
    id_rows: Any = ids.tolist()
    logprob_rows: Any = logprobs.tolist()
    dicts = []
    for count, tokens, values in zip(counts, id_rows, logprob_rows, strict=True):
        entries = dict(zip(tokens[:count], values[:count], strict=True))
        entries.setdefault(tokens[-1], values[-1])
        dicts.append(entries)
    return dicts
