"""Log-probabilities of prompt tokens.

The logits at prompt token p are a distribution over token p + 1, which the prompt contains. Scoring
requires logits for every row of a prompt chunk; otherwise, only the last row's are computed, for
sampling.
"""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx

from ..scheduling.outputs import Chunk, ChunkOutput
from ..scheduling.request import EngineRequest
from .logprobs import top_logprobs

LOGPROBS_CHUNK_SIZE = 32  # rows per log-softmax, at V floats each

ScoredPrompt = tuple[EngineRequest, list[int]]  # a request, and the prompt tokens to score


def prompt_logprob_rows(
    chunks: Sequence[Chunk], draft_tokens: Sequence[Sequence[int]]
) -> tuple[list[ScoredPrompt], list[int]]:
    """Finds the rows, among a step's T tokens, that score prompt tokens.

    Args:
        chunks: the step's chunks.
        draft_tokens: draft tokens after each chunk.

    Returns:
        (requests with the prompt tokens to score, row of each of these tokens).
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
        scored: as returned by `prompt_logprob_rows`.
        logits: logits of the rows from `prompt_logprob_rows`, R×V.
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
