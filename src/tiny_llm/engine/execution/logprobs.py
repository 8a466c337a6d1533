"""Log-probabilities of output and prompt tokens, and of top-k alternatives.

All are computed before any logits processor. The logits at prompt token p score token p + 1, so
prompt logprobs need logits for all rows of a prompt chunk; sampling needs only the last row's.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from ...sampling_ops import log_softmax
from ..scheduling.outputs import Chunk, ChunkOutput, Logprobs
from ..scheduling.request import EngineRequest

# Rows per log-softmax, to limit its temporary memory: rows × vocabulary size floats.
LOGPROBS_CHUNK_SIZE = 32

ScoredPrompt = tuple[EngineRequest, list[int]]  # a request, and its prompt tokens to score


def top_logprobs(logits: mx.array, counts: Sequence[int], chosen: Sequence[int]) -> list[Logprobs]:
    """Computes log-probabilities for each row's top tokens and its chosen token.

    Args:
        logits: R×V, before any logits processor.
        counts: number of top tokens for each row.

    Returns:
        For each row, log-probabilities by token id, in descending order; the chosen token is last
        if it is not among the top tokens.
    """
    gathered = gather_logprobs(logits, max(counts), mx.array(list(chosen)))
    return logprobs_to_dicts(*gathered, counts)


def gather_logprobs(
    logits: mx.array, num_logprobs: int, chosen: mx.array
) -> tuple[mx.array, mx.array]:
    """Gathers log-probabilities of each row's top tokens, then its chosen token.

    Args:
        logits: R×V.
        num_logprobs: number of top tokens per row, K; clamped to V.

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
    """Converts `gather_logprobs`' arrays to dicts with counts[row] top tokens."""
    id_rows: Any = ids.tolist()
    logprob_rows: Any = logprobs.tolist()
    dicts = []
    for count, tokens, values in zip(counts, id_rows, logprob_rows, strict=True):
        entries = dict(zip(tokens[:count], values[:count], strict=True))
        entries.setdefault(tokens[-1], values[-1])
        dicts.append(entries)
    return dicts


def prompt_logprob_rows(
    chunks: Sequence[Chunk], draft_tokens: Sequence[Sequence[int]]
) -> tuple[list[ScoredPrompt], list[int]]:
    """Finds the rows, among a step's T tokens, that score prompt tokens.

    Returns:
        (requests with the prompt tokens to score, row that scores each of these tokens).
    """
    scored: list[ScoredPrompt] = []
    rows: list[int] = []
    num_tokens = 0
    for chunk, chunk_drafts in zip(chunks, draft_tokens, strict=True):
        request = chunk.request
        first, end = max(chunk.start, request.num_scored), min(chunk.end, request.num_to_score)
        if first < end:
            scored.append((request, request.token_ids[first + 1 : end + 1]))
            rows += range(num_tokens + first - chunk.start, num_tokens + end - chunk.start)
        num_tokens += chunk.end - chunk.start + len(chunk_drafts)
    return scored, rows


def add_prompt_logprobs(
    results: dict[str, ChunkOutput], scored: Sequence[ScoredPrompt], logits: mx.array
) -> None:
    """Adds prompt logprobs to a step's results.

    Args:
        results: by request id; requests that do not sample in this step are added.
        logits: R×V, at the rows from `prompt_logprob_rows`.
    """
    first = 0
    for request, tokens in scored:
        logprobs = []
        for start in range(0, len(tokens), LOGPROBS_CHUNK_SIZE):
            part = tokens[start : start + LOGPROBS_CHUNK_SIZE]
            counts = [request.params.prompt_logprobs or 0] * len(part)
            rows = logits[first + start : first + start + len(part)]
            logprobs += top_logprobs(rows, counts, part)
        first += len(tokens)
        result = results.get(request.request_id, ChunkOutput([]))
        results[request.request_id] = replace(result, prompt_logprobs=logprobs)
