"""What the scheduler and the runner exchange: chunks of requests, and the tokens they led to."""

from collections.abc import Sequence
from dataclasses import dataclass

from .outputs import Logprobs
from .request import EngineRequest


@dataclass(frozen=True)
class Chunk:
    """A step computes tokens [start, end) of a request, then `num_drafts` guesses after them.

    Attributes:
        samples: whether the request has no tokens beyond `end`, so that its answer goes on.
    """

    request: EngineRequest
    start: int
    end: int
    num_drafts: int
    samples: bool

    @property
    def num_tokens(self) -> int:
        """Tokens and guesses: the chunk's share of the step's budget."""
        return self.end - self.start + self.num_drafts


@dataclass(frozen=True)
class SchedulerOutput:
    """The chunks that are computed together.

    Attributes:
        index: the number of the step, from 0.
        chunks: at most one for each request, with at least one token each.
    """

    index: int
    chunks: tuple[Chunk, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens and guesses of all chunks; at most `max_num_batched_tokens`."""
        return sum(chunk.num_tokens for chunk in self.chunks)


@dataclass(frozen=True)
class ChunkOutput:
    """The outcome of a chunk that samples, or whose tokens of the prompt are scored.

    Attributes:
        token_ids: the answer's next tokens: the guesses that were right, and one more. None if the
            chunk does not sample, or there is an `error`.
        num_draft_uncomputed: see `EngineRequest`. A page is shared once both models have written
            it.
        logprobs: one for each token, if the request wants them.
        prompt_logprobs: of the prompt's tokens after `num_scored`, as far as they are computed.
        error: a sentence, if the request cannot go on.
    """

    token_ids: Sequence[int]
    num_draft_uncomputed: int = 0
    logprobs: Sequence[Logprobs] | None = None
    prompt_logprobs: Sequence[Logprobs] = ()
    error: str | None = None
