"""ModelRunner: runs target and draft model on a step, samples and verifies.

Must not know about queues or text.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from .execution.async_scheduling import AsyncScheduling
from .execution.logits_processors import SamplingRow
from .execution.paged_model import PagedModel, Span
from .execution.prompt_logprobs import add_prompt_logprobs, prompt_logprob_rows
from .execution.sampler import SamplerOutput
from .scheduling.batch import Chunk, ChunkOutput, SchedulerOutput
from .spec_decode.draft_model import DraftModel, count_accepted, num_draft_uncomputed

NAN_LOGITS = "the model computed NaN logits, from which no token can be sampled."


@dataclass
class ModelRunnerStatistics:
    """Totals of sampling time, steps and draft tokens.

    Attributes:
        sampling_seconds: time spent sampling the target's tokens.
        steps: forward passes of the target.
        num_decodes: chunks of decoding requests.
        num_draft_tokens: draft tokens verified.
        num_accepted_tokens: draft tokens accepted.
    """

    sampling_seconds: float = 0.0
    steps: int = 0
    num_decodes: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass
class ModelRunner:
    """Computes the scheduler's steps.

    Args:
        target: the target model.
        draft: the draft model, or None.

    Attributes:
        statistics: totals.
        async_scheduling: speculative launch of the next decoding step, on a GPU.
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
            By request id, the results of chunks that sample or score prompt tokens.
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
        """Time spent in the models and in sampling; the rest of a step is overhead."""
        total = self.target.seconds + self.statistics.sampling_seconds
        if self.draft is not None:
            total += self.draft.model.seconds + self.draft.sampling_seconds
        return total

    def _sample(
        self, chunks: Sequence[Chunk], draft_tokens: Sequence[Sequence[int]], logits: mx.array
    ) -> dict[str, ChunkOutput]:
        """Samples and verifies: accepted draft tokens plus one token per sampling chunk."""
        sampled = [(c, d) for c, d in zip(chunks, draft_tokens, strict=True) if c.samples]
        rows = [
            SamplingRow(chunk.request, chunk.request.num_output_tokens + i, tuple(drafts[:i]))
            for chunk, drafts in sampled
            for i in range(len(drafts) + 1)
        ]
        if not rows:
            return {}
        output = SamplerOutput(logits, rows)
        all_decode = len(sampled) == len(chunks) and self.draft is None and not any(draft_tokens)
        if self.async_scheduling.enabled and all_decode:
            self.async_scheduling.launch(chunks, output.tokens)
        token_ids, nan_rows, logprobs = output.read()
        results, first = {}, 0
        for chunk, drafts in sampled:
            num_accepted = count_accepted(drafts, token_ids[first:])
            end = first + num_accepted + 1
            if nan_rows:
                end = min([end, *(row for row in nan_rows if row >= first)])
                num_accepted = end - first - 1
            has_logprobs = chunk.request.params.logprobs is not None
            results[chunk.request.request_id] = ChunkOutput(
                token_ids[first:end],
                num_draft_uncomputed(len(drafts), num_accepted),
                [logprobs[row] for row in range(first, end)] if has_logprobs else None,
                error=None if end > first else NAN_LOGITS,
            )
            self.statistics.num_decodes += chunk.request.num_output_tokens > 0
            self.statistics.num_draft_tokens += len(drafts)
            self.statistics.num_accepted_tokens += max(0, num_accepted)
            first += len(drafts) + 1
        return results


def target_spans(
    chunks: Sequence[Chunk], draft_tokens: Sequence[Sequence[int]]
) -> tuple[list[Span], list[int]]:
    """Returns the target's spans, draft tokens included, and the rows to sample from."""
    spans: list[Span] = []
    rows: list[int] = []
    num_tokens = 0
    for chunk, drafts in zip(chunks, draft_tokens, strict=True):
        tokens = [*chunk.request.token_ids[chunk.start : chunk.end], *drafts]
        spans.append(Span(tokens, chunk.start, chunk.request.page_ids))
        num_tokens += len(tokens)
        if chunk.samples:
            rows.extend(range(num_tokens - len(drafts) - 1, num_tokens))
    return spans, rows
