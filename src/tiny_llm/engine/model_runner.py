"""ModelRunner: forward passes, sampling and draft token verification.

This module must not depend on request queues or text.
"""

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from .. import kernels
from .execution.async_scheduling import AsyncScheduling
from .execution.logprobs import ScoredPrompt, add_prompt_logprobs, prompt_logprob_rows
from .execution.paged_model import PagedModel, Span
from .execution.sampler import SamplerOutput, SamplingRow
from .scheduling.outputs import Chunk, ChunkOutput, SchedulerOutput
from .spec_decode.draft_model import DraftModel
from .spec_decode.mtp_drafter import MtpDrafter
from .spec_decode.verification import SpeculationStatistics, accepted_tokens

NAN_LOGITS = "the model produced NaN logits, so no token can be sampled."
NAN_RESULT = "the model's output contains NaN or infinity."


@dataclass
class ModelRunner:
    """Executes the steps planned by the scheduler.

    Attributes:
        num_decodes: total number of chunks of decoding requests.
        async_scheduling: launches the next decoding step before this step's tokens are read; GPU
            only.
    """

    target: PagedModel
    draft: DraftModel | None = None
    statistics: SpeculationStatistics = field(default_factory=SpeculationStatistics)
    num_decodes: int = 0
    async_scheduling: AsyncScheduling = field(init=False)

    def __post_init__(self) -> None:
        self.async_scheduling = AsyncScheduling(self.target)

    def run(self, step: SchedulerOutput) -> dict[str, ChunkOutput]:
        """Computes a step with at least one chunk.

        Returns the results of chunks that sample a token or score prompt tokens, by request id.
        """
        chunks = step.chunks
        draft_tokens = [list(chunk.request.draft_token_ids[: chunk.num_drafts]) for chunk in chunks]
        if self.draft is not None:
            draft_tokens = self.draft.propose(chunks)
        spans, rows = target_spans(chunks, draft_tokens)
        scored: list[ScoredPrompt] = []
        rows_to_score: list[int] = []
        if any(chunk.request.num_to_score for chunk in chunks):
            scored, rows_to_score = prompt_logprob_rows(chunks, draft_tokens)
        logits = None
        if self.async_scheduling.enabled:
            logits = self.async_scheduling.take_logits(chunks)
        if logits is None:
            logits = self._target_logits(spans, rows + rows_to_score)
        started = time.perf_counter()
        results = self._sample(chunks, draft_tokens, logits[: len(rows)] if scored else logits)
        if scored:
            add_prompt_logprobs(results, scored, logits[len(rows) :])
        self.target.seconds += time.perf_counter() - started
        self.statistics.target_steps += 1
        return results

    def release(self, pages: Collection[int], slots: Collection[int]) -> None:
        for model in self.models:
            model.release(pages, slots)

    @property
    def models(self) -> list[PagedModel]:
        return [self.target] if self.draft is None else [self.target, self.draft.model]

    @property
    def nbytes(self) -> int:
        return sum(model.nbytes for model in self.models)

    @property
    def peak_memory(self) -> int:
        """MLX's peak memory in bytes, without memory that is reserved, but not in use."""
        return mx.get_peak_memory() - sum(model.unused_bytes for model in self.models)

    @property
    def seconds(self) -> float:
        """Time spent in the models and in sampling; the rest of a step is overhead."""
        return sum(model.seconds for model in self.models)

    def _target_logits(self, spans: Sequence[Span], rows: Sequence[int]) -> mx.array:
        return self.target.logits(spans, rows)

    def _sample(
        self, chunks: Sequence[Chunk], draft_tokens: Sequence[Sequence[int]], logits: mx.array
    ) -> dict[str, ChunkOutput]:
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
            last = first + len(drafts) + 1
            end = last
            if drafts:
                end = first + len(accepted_tokens(drafts, token_ids[first:last]))
            if nan_rows:
                end = min([end, *(row for row in nan_rows if row >= first)])
            num_accepted = end - first - 1
            uncomputed = 0
            if self.draft is not None:
                uncomputed = self.draft.num_uncomputed(len(drafts), num_accepted)
            has_logprobs = chunk.request.params.logprobs is not None
            results[chunk.request.request_id] = ChunkOutput(
                token_ids[first:end],
                uncomputed,
                [logprobs[row] for row in range(first, end)] if has_logprobs else None,
                error=None if end > first else NAN_LOGITS,
            )
            self.num_decodes += chunk.request.num_output_tokens > 0
            self.statistics.num_draft_tokens += len(drafts)
            self.statistics.num_accepted_tokens += max(0, num_accepted)
            first = last
        return results


@dataclass
class MtpRunner(ModelRunner):
    """ModelRunner with draft tokens from the target's MTP layer."""

    draft: MtpDrafter
    _hidden: mx.array = field(init=False)  # T×E: hidden states of the current step's T tokens

    def run(self, step: SchedulerOutput) -> dict[str, ChunkOutput]:
        results = super().run(step)
        self.draft.update(step.chunks, self._hidden, results)
        return results

    def _target_logits(self, spans: Sequence[Span], rows: Sequence[int]) -> mx.array:
        num_tokens = sum(len(span.token_ids) for span in spans)
        self._hidden = self.target.features(spans, range(num_tokens))
        return self.target.lm_head(self._hidden[kernels.as_int32(rows)])


@dataclass
class PoolingRunner(ModelRunner):
    """ModelRunner for pooling models: one vector per prompt, no decoding.

    Args:
        pool: maps the model's outputs at the last tokens of N prompts to N vectors.
    """

    pool: Callable[[mx.array], mx.array] = lambda x: x

    def _sample(
        self, chunks: Sequence[Chunk], draft_tokens: Sequence[Sequence[int]], logits: mx.array
    ) -> dict[str, ChunkOutput]:
        """Pools the prompts that end in this step; each counts as one output token."""
        ended = [chunk.request.request_id for chunk in chunks if chunk.samples]
        if not ended:
            return {}
        vectors: list[list[float]] = self.pool(logits).tolist()  # type: ignore[assignment]
        return {
            request_id: ChunkOutput([0], pooled=vector)
            if all(map(math.isfinite, vector))
            else ChunkOutput((), error=NAN_RESULT)
            for request_id, vector in zip(ended, vectors, strict=True)
        }


def target_spans(
    chunks: Sequence[Chunk], draft_tokens: Sequence[Sequence[int]]
) -> tuple[list[Span], list[int]]:
    """Returns spans with draft tokens, and the rows of logits to sample from."""
    spans: list[Span] = []
    rows: list[int] = []
    num_tokens = 0
    for chunk, drafts in zip(chunks, draft_tokens, strict=True):
        tokens = [*chunk.request.token_ids[chunk.start : chunk.end], *drafts]
        states = chunk.state_read_slot, chunk.state_writes
        request = chunk.request
        spans.append(Span(tokens, chunk.start, request.page_ids, *states, request.adapter))
        num_tokens += len(tokens)
        if chunk.samples:
            rows.extend(range(num_tokens - len(drafts) - 1, num_tokens))
    return spans, rows
