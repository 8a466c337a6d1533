"""The runner: a step of the scheduler through the model, to the tokens that were chosen.

Knows models, pages and sampling; nothing of queues, text or time.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import mlx.core as mx

from .draft_model import DraftModel, count_right, num_unguessed
from .paged_model import PagedModel, Span
from .sampling import Logprobs, RequestSampling, SamplingRow, choose_tokens, top_logprobs
from .step import Chunk, Step


@dataclass(frozen=True)
class ChunkOutput:
    """What came of a chunk that samples.

    Attributes:
        token_ids: the answer's next tokens, at least one.
        logprobs: for each of them, if the request wants that.
        num_unguessed: see `Request`.
    """

    token_ids: list[int]
    logprobs: list[Logprobs] | None
    num_unguessed: int


@dataclass
class RunnerStatistics:
    """Where the time of the steps went, and what guessing was good for.

    Attributes:
        sampling_seconds: spent choosing the target's tokens.
        steps: runs of the target.
        decoded: how often a request that decodes got its next tokens.
        proposed, accepted: guesses.
    """

    sampling_seconds: float = 0.0
    steps: int = 0
    decoded: int = 0
    proposed: int = 0
    accepted: int = 0


@dataclass
class Runner:
    """Runs steps.

    Args:
        target: the model that answers.
        draft: the one that guesses, or None.

    Attributes:
        statistics: since the beginning.
    """

    target: PagedModel
    draft: DraftModel | None = None
    statistics: RunnerStatistics = field(default_factory=RunnerStatistics)

    def run(self, step: Step, samplings: Mapping[str, RequestSampling]) -> dict[str, ChunkOutput]:
        """The next tokens of every request whose chunk samples, by request id.

        Args:
            step: from the scheduler, with at least one chunk.
            samplings: by request id.
        """
        chunks = step.chunks
        guesses: list[list[int]] = [[] for _ in chunks]
        if self.draft is not None:
            guesses = self.draft.propose(chunks, samplings)
        spans, rows = target_spans(chunks, guesses)
        logits = self.target.logits(spans, rows)
        started = time.perf_counter()
        outputs = self._choose(chunks, guesses, logits, samplings)
        self.statistics.sampling_seconds += time.perf_counter() - started
        self.statistics.steps += 1
        return outputs

    @property
    def seconds(self) -> float:
        """Spent in the models and choosing tokens; what else a step takes is bookkeeping."""
        total = self.target.seconds + self.statistics.sampling_seconds
        if self.draft is not None:
            total += self.draft.model.seconds + self.draft.sampling_seconds
        return total

    def _choose(
        self,
        chunks: Sequence[Chunk],
        guesses: Sequence[Sequence[int]],
        logits: mx.array,
        samplings: Mapping[str, RequestSampling],
    ) -> dict[str, ChunkOutput]:
        """The target's choice in each place, up to the first that a guess did not foresee."""
        sampled = [(c, g) for c, g in zip(chunks, guesses, strict=True) if c.samples]
        rows = [
            SamplingRow(
                samplings[chunk.request.request_id],
                chunk.request.num_output_tokens + place,
                tuple(own[:place]),
            )
            for chunk, own in sampled
            for place in range(len(own) + 1)
        ]
        if not rows:
            return {}
        chosen = choose_tokens(logits, rows)
        logprobs = _wanted_logprobs(logits, rows, chosen)
        outputs, first = {}, 0
        for chunk, own in sampled:
            right = count_right(own, chosen[first:])
            end = first + right + 1
            wanted = chunk.request.params.logprobs is not None
            outputs[chunk.request.request_id] = ChunkOutput(
                chosen[first:end],
                [logprobs[row] for row in range(first, end)] if wanted else None,
                num_unguessed(len(own), right),
            )
            self.statistics.decoded += chunk.request.num_output_tokens > 0
            self.statistics.proposed += len(own)
            self.statistics.accepted += right
            first += len(own) + 1
        return outputs


def target_spans(
    chunks: Sequence[Chunk], guesses: Sequence[Sequence[int]]
) -> tuple[list[Span], list[int]]:
    """What the target computes, and after which of these tokens it says the next."""
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


def _wanted_logprobs(
    logits: mx.array, rows: Sequence[SamplingRow], chosen: Sequence[int]
) -> dict[int, Logprobs]:
    """By row, for those whose request asks for them."""
    wanted = [index for index, row in enumerate(rows) if row.params.logprobs is not None]
    if not wanted:
        return {}
    counts = [rows[index].params.logprobs or 0 for index in wanted]
    own = [chosen[index] for index in wanted]
    return dict(zip(wanted, top_logprobs(logits[mx.array(wanted)], counts, own), strict=True))
