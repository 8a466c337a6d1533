"""ModelRunner: forward passes, sampling, draft token verification, async scheduling.

This module must not depend on request queues or text.
"""

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import mlx.core as mx

from .. import kernels
from .execution.paged_model import PagedModel, Span
from .execution.sampler import SamplerOutput, SamplingRow, top_logprobs
from .scheduling.request import Chunk, ChunkOutput, EngineRequest, SchedulerOutput
from .spec_decode.draft_model import DraftModel, MtpDrafter
from .spec_decode.draft_tokens import SpeculationStatistics, accepted_tokens

# Rows per log-softmax, to limit its temporary memory: rows × vocabulary size floats.
LOGPROBS_CHUNK_SIZE = 32
NAN_LOGITS = "the model produced NaN logits, so no token can be sampled."
NAN_RESULT = "the model's output contains NaN or infinity."

ScoredPrompt = tuple[EngineRequest, list[int]]  # a request, and its prompt tokens to score


class AsyncScheduling:
    """Async scheduling: launches decoding steps before the last tokens are read.

    Otherwise, the GPU would idle while Python reads a step's tokens and schedules the next step.
    Most requests continue, and their next input is known: the token just sampled, still on the
    device. So the model is launched on that token at once, in a predicted step with the same
    requests.

    If the scheduler then plans this step, its logits are ready. Otherwise, for example if it adds a
    prompt chunk, the logits are discarded. Keys and values already written are harmless: their
    slots belong to the request and are overwritten, later in the same stream, before they are read.

    Attributes:
        enabled: False on a CPU, where the model and Python would compete for the cores.
        num_hits, num_misses: launched steps that the scheduler then did, or did not, plan.
    """

    def __init__(self, model: PagedModel):
        self.enabled = not kernels.computes_on_cpu()
        self.num_hits = 0
        self.num_misses = 0
        self._model = model
        # By arrival index: the row of the logits, and the launched token's position and page.
        self._predicted: dict[int, tuple[int, int, int]] = {}
        self._logits: mx.array | None = None

    def launch(self, chunks: Sequence[Chunk], tokens: mx.array) -> None:
        """Launches the next step for the requests that are expected to continue.

        Args:
            chunks: the step's chunks; each samples a token and has no draft tokens.
            tokens: the sampled token of each chunk, possibly not evaluated yet.
        """
        self._predicted = {}
        indices: list[int] = []
        spans: list[Span] = []
        for index, chunk in enumerate(chunks):
            request, position = chunk.request, chunk.end
            assert request.max_tokens is not None
            page = self._page(request, position)
            if page >= 0 and request.num_output_tokens + 1 < request.max_tokens:
                self._predicted[request.arrival_index] = len(spans), position, page
                indices.append(index)
                spans.append(Span([0], position, request.page_ids, adapter=request.adapter))
        if spans:
            rows = list(range(len(spans)))
            self._logits = self._model.logits_async(tokens[mx.array(indices)], spans, rows)

    def take_logits(self, chunks: Sequence[Chunk]) -> mx.array | None:
        """Returns the step's logits, a row per chunk; None unless all were predicted."""
        logits, self._logits = self._logits, None
        if logits is None:
            return None
        rows = [self._row(chunk) for chunk in chunks]
        if None in rows:
            self.num_misses += 1
            return None
        self.num_hits += 1
        return logits if rows == list(range(logits.shape[0])) else logits[mx.array(rows)]

    def _row(self, chunk: Chunk) -> int | None:
        predicted = self._predicted.get(chunk.request.arrival_index)
        if predicted is None or chunk.num_drafts:
            return None
        row, position, predicted_page = predicted
        if (chunk.start, chunk.end) != (position, position + 1):
            return None
        return row if self._page(chunk.request, chunk.start) == predicted_page else None

    def _page(self, request: EngineRequest, position: int) -> int:
        """The first page of a position's block; −1 if there is none."""
        index = position // self._model.page_size * self._model.layout.block_pages
        return request.page_ids[index] if index < len(request.page_ids) else -1


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


def prompt_logprob_rows(
    chunks: Sequence[Chunk], draft_tokens: Sequence[Sequence[int]]
) -> tuple[list[ScoredPrompt], list[int]]:
    """Finds the rows, among a step's T tokens, that score prompt tokens.

    The logits at prompt token p score token p + 1, so prompt logprobs need logits for all rows of a
    prompt chunk; sampling needs only the last row's.

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
