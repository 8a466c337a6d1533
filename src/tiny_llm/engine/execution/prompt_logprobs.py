"""Log-probabilities of a prompt's own tokens.

The logits after token p of a prompt are a distribution over token p + 1, which the prompt has
already. A chunk of a prompt gives them for its own tokens; usually only those of the last one are
computed, because only they choose a token.
"""

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx

from ..scheduling.batch import Chunk, ChunkOutput
from ..scheduling.request import EngineRequest
from .sampler import top_logprobs

# Log-probabilities of so many tokens are computed at once: each takes a row of the vocabulary.
LOGPROBS_CHUNK_SIZE = 32

# A request, and the tokens of its prompt that follow the rows.
ScoredPrompt = tuple[EngineRequest, list[int]]


def prompt_logprob_rows(
    chunks: Sequence[Chunk], draft_tokens: Sequence[Sequence[int]]
) -> tuple[list[ScoredPrompt], list[int]]:
    """The rows of a step, of its T tokens and guesses, whose logits tell log-probabilities.

    Returns:
        (the requests, each with the tokens that follow its rows; the rows of all requests).
    """
    scored: list[ScoredPrompt] = []
    rows: list[int] = []
    num_tokens = 0
    for chunk, own in zip(chunks, draft_tokens, strict=True):
        request = chunk.request
        first, end = max(chunk.start, request.num_scored), min(chunk.end, request.num_to_score)
        if first < end:
            scored.append((request, request.token_ids[first + 1 : end + 1]))
            rows += range(num_tokens + first - chunk.start, num_tokens + end - chunk.start)
        num_tokens += chunk.end - chunk.start + len(own)
    return scored, rows


def add_prompt_logprobs(
    results: dict[str, ChunkOutput], scored: Sequence[ScoredPrompt], logits: mx.array
) -> None:
    """Puts log-probabilities into the results of a step.

    Args:
        results: by request id; a request that does not sample in this step gets its own.
        scored: from `prompt_logprob_rows`.
        logits: of its rows, R×V.
    """
    first = 0
    for request, tokens in scored:
        found = []
        for start in range(0, len(tokens), LOGPROBS_CHUNK_SIZE):
            part = tokens[start : start + LOGPROBS_CHUNK_SIZE]
            counts = [request.params.prompt_logprobs or 0] * len(part)
            rows = logits[first + start : first + start + len(part)]
            found += top_logprobs(rows, counts, part)
        first += len(tokens)
        result = results.get(request.request_id, ChunkOutput([]))
        results[request.request_id] = replace(result, prompt_logprobs=found)
