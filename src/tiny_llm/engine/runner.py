"""The runner: computes a step of the scheduler and chooses the next tokens.

It knows models, pages and sampling; nothing of queues and text.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from .choice import Choice
from .choose_tokens import SamplingRow
from .draft_model import DraftModel, count_right, num_unguessed
from .look_ahead import LookAhead
from .paged_model import PagedModel, Span
from .prompt_logprobs import add_prompt_logprobs, rows_of_prompts
from .step import Chunk, ChunkResult, Step

NOT_A_NUMBER = (
    "the model computed logits that are not numbers (NaN), from which no token can be chosen."
)


@dataclass
class RunnerStatistics:
    """Where the time of the steps went, and how many guesses were right.

    Attributes:
        sampling_seconds: time spent choosing the target's tokens.
        steps: runs of the target.
        decoded: how often a request that decodes got its next tokens.
        proposed: guesses.
        accepted: guesses that were right.
    """

    sampling_seconds: float = 0.0
    steps: int = 0
    decoded: int = 0
    proposed: int = 0
    accepted: int = 0


@dataclass
class Runner:
    """Computes steps.

    Args:
        target: the model that answers.
        draft: the model that guesses, or None.

    Attributes:
        statistics: since the beginning.
        look_ahead: what a GPU computes before the scheduler has asked for it.
    """

    target: PagedModel
    draft: DraftModel | None = None
    statistics: RunnerStatistics = field(default_factory=RunnerStatistics)
    look_ahead: LookAhead = field(init=False)

    def __post_init__(self) -> None:
        self.look_ahead = LookAhead(self.target)

    def run(self, step: Step) -> dict[str, ChunkResult]:
        """Computes a step with at least one chunk.

        Returns:
            The results of the chunks that sample or are scored, by request id.
        """
        chunks = step.chunks
        guesses = [list(chunk.request.offered[: chunk.num_drafts]) for chunk in chunks]
        if self.draft is not None:
            guesses = self.draft.propose(chunks)
        spans, rows = target_spans(chunks, guesses)
        scored, rows_to_score = rows_of_prompts(chunks, guesses)
        logits = self.look_ahead.take(chunks)
        if logits is None:
            logits = self.target.logits(spans, rows + rows_to_score)
        started = time.perf_counter()
        results = self._choose(chunks, guesses, logits[: len(rows)] if scored else logits)
        add_prompt_logprobs(results, scored, logits[len(rows) :])
        self.statistics.sampling_seconds += time.perf_counter() - started
        self.statistics.steps += 1
        return results

    @property
    def seconds(self) -> float:
        """Time spent in the models and choosing tokens; the rest of a step is bookkeeping."""
        total = self.target.seconds + self.statistics.sampling_seconds
        if self.draft is not None:
            total += self.draft.model.seconds + self.draft.sampling_seconds
        return total

    def _choose(
        self, chunks: Sequence[Chunk], guesses: Sequence[Sequence[int]], logits: mx.array
    ) -> dict[str, ChunkResult]:
        """The target's choice in each place, up to the first that is not the guess."""
        sampled = [(c, g) for c, g in zip(chunks, guesses, strict=True) if c.samples]
        rows = [
            SamplingRow(chunk.request, chunk.request.num_output_tokens + place, tuple(own[:place]))
            for chunk, own in sampled
            for place in range(len(own) + 1)
        ]
        if not rows:
            return {}
        choice = Choice(logits, rows)
        all_decode = len(sampled) == len(chunks) and self.draft is None and not any(guesses)
        if self.look_ahead.is_on and all_decode:
            self.look_ahead.begin(chunks, choice.tokens)
        chosen, broken, logprobs = choice.read()
        results, first = {}, 0
        for chunk, own in sampled:
            right = count_right(own, chosen[first:])
            end = first + right + 1
            if broken:
                end = min([end, *(row for row in broken if row >= first)])
                right = end - first - 1
            wanted = chunk.request.params.logprobs is not None
            results[chunk.request.request_id] = ChunkResult(
                chosen[first:end],
                num_unguessed(len(own), right),
                [logprobs[row] for row in range(first, end)] if wanted else None,
                error=None if end > first else NOT_A_NUMBER,
            )
            self.statistics.decoded += chunk.request.num_output_tokens > 0
            self.statistics.proposed += len(own)
            self.statistics.accepted += max(0, right)
            first += len(own) + 1
        return results


def target_spans(
    chunks: Sequence[Chunk], guesses: Sequence[Sequence[int]]
) -> tuple[list[Span], list[int]]:
    """The tokens that the target computes, and the rows whose logits choose a token."""
    spans: list[Span] = []
    rows: list[int] = []
    num_tokens = 0
    for chunk, own in zip(chunks, guesses, strict=True):
        tokens = [*chunk.request.token_ids[chunk.start : chunk.end], *own]
        spans.append(Span(tokens, chunk.start, chunk.request.page_ids))
        num_tokens += len(tokens)
        if chunk.samples:
            rows.extend(range(num_tokens - len(own) - 1, num_tokens))
    return spans, rows
