"""The runner: computes a step of the scheduler and chooses the next tokens.

It knows models, pages and sampling; nothing of queues and text.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from .execution.async_scheduling import AsyncScheduling
from .execution.paged_model import PagedModel, Span
from .execution.prompt_logprobs import add_prompt_logprobs, prompt_logprob_rows
from .execution.sampler import SamplingRow
from .execution.sampler_output import SamplerOutput
from .scheduling.batch import Chunk, ChunkOutput, SchedulerOutput
from .spec_decode.draft_model import DraftModel, count_accepted, num_draft_uncomputed

NAN_LOGITS = (
    "the model computed logits that are not numbers (NaN), from which no token can be chosen."
)


@dataclass
class ModelRunnerStatistics:
    """Where the time of the steps went, and how many guesses were right.

    Attributes:
        sampling_seconds: time spent choosing the target's tokens.
        steps: runs of the target.
        num_decodes: how often a request that decodes got its next tokens.
        num_draft_tokens: guesses.
        num_accepted_tokens: guesses that were right.
    """

    sampling_seconds: float = 0.0
    steps: int = 0
    num_decodes: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass
class ModelRunner:
    """Computes steps.

    Args:
        target: the model that answers.
        draft: the model that guesses, or None.

    Attributes:
        statistics: since the beginning.
        async_scheduling: what a GPU computes before the scheduler has asked for it.
    """

    target: PagedModel
    draft: DraftModel | None = None
    statistics: ModelRunnerStatistics = field(default_factory=ModelRunnerStatistics)
    async_scheduling: AsyncScheduling = field(init=False)

    def __post_init__(self) -> None:
        self.async_scheduling = AsyncScheduling(self.target)

    def run(self, step: SchedulerOutput) -> dict[str, ChunkOutput]:
        """Computes a step with at least one chunk.

        Returns:
            The results of the chunks that sample or are scored, by request id.
        """
        chunks = step.chunks
        draft_tokens = [list(chunk.request.draft_token_ids[: chunk.num_drafts]) for chunk in chunks]
        if self.draft is not None:
            draft_tokens = self.draft.propose(chunks)
        spans, rows = target_spans(chunks, draft_tokens)
        scored, rows_to_score = prompt_logprob_rows(chunks, draft_tokens)
        logits = self.async_scheduling.take_logits(chunks)
        if logits is None:
            logits = self.target.logits(spans, rows + rows_to_score)
        started = time.perf_counter()
        results = self._sample(chunks, draft_tokens, logits[: len(rows)] if scored else logits)
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

    def _sample(
        self, chunks: Sequence[Chunk], draft_tokens: Sequence[Sequence[int]], logits: mx.array
    ) -> dict[str, ChunkOutput]:
        """The target's choice in each place, up to the first that is not the guess."""
        sampled = [(c, g) for c, g in zip(chunks, draft_tokens, strict=True) if c.samples]
        rows = [
            SamplingRow(chunk.request, chunk.request.num_output_tokens + place, tuple(own[:place]))
            for chunk, own in sampled
            for place in range(len(own) + 1)
        ]
        if not rows:
            return {}
        choice = SamplerOutput(logits, rows)
        all_decode = len(sampled) == len(chunks) and self.draft is None and not any(draft_tokens)
        if self.async_scheduling.enabled and all_decode:
            self.async_scheduling.launch(chunks, choice.tokens)
        chosen, broken, logprobs = choice.read()
        results, first = {}, 0
        for chunk, own in sampled:
            right = count_accepted(own, chosen[first:])
            end = first + right + 1
            if broken:
                end = min([end, *(row for row in broken if row >= first)])
                right = end - first - 1
            wanted = chunk.request.params.logprobs is not None
            results[chunk.request.request_id] = ChunkOutput(
                chosen[first:end],
                num_draft_uncomputed(len(own), right),
                [logprobs[row] for row in range(first, end)] if wanted else None,
                error=None if end > first else NAN_LOGITS,
            )
            self.statistics.num_decodes += chunk.request.num_output_tokens > 0
            self.statistics.num_draft_tokens += len(own)
            self.statistics.num_accepted_tokens += max(0, right)
            first += len(own) + 1
        return results


def target_spans(
    chunks: Sequence[Chunk], draft_tokens: Sequence[Sequence[int]]
) -> tuple[list[Span], list[int]]:
    """The tokens that the target computes, and the rows whose logits choose a token."""
    spans: list[Span] = []
    rows: list[int] = []
    num_tokens = 0
    for chunk, own in zip(chunks, draft_tokens, strict=True):
        tokens = [*chunk.request.token_ids[chunk.start : chunk.end], *own]
        spans.append(Span(tokens, chunk.start, chunk.request.page_ids))
        num_tokens += len(tokens)
        if chunk.samples:
            rows.extend(range(num_tokens - len(own) - 1, num_tokens))
    return spans, rows
