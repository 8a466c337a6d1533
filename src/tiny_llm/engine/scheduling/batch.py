"""SchedulerOutput and ChunkOutput: messages of scheduler and model runner."""

from collections.abc import Sequence
from dataclasses import dataclass

from .outputs import Logprobs
from .request import EngineRequest


@dataclass(frozen=True)
class Chunk:
    """Tokens [start, end) of a request, followed by `num_drafts` draft tokens.

    Attributes:
        samples: whether the chunk reaches the end of the request's tokens and samples the next one.
    """

    request: EngineRequest
    start: int
    end: int
    num_drafts: int
    samples: bool

    @property
    def num_tokens(self) -> int:
        """Number of tokens, draft tokens included: the chunk's share of the token budget."""
        return self.end - self.start + self.num_drafts


@dataclass(frozen=True)
class SchedulerOutput:
    """The chunks of one step.

    Attributes:
        index: step number, from 0.
        chunks: at most one per request, at least one token each.
    """

    index: int
    chunks: tuple[Chunk, ...]

    @property
    def num_tokens(self) -> int:
        """Number of tokens, draft tokens included; at most `max_num_batched_tokens`."""
        return sum(chunk.num_tokens for chunk in self.chunks)


@dataclass(frozen=True)
class ChunkOutput:
    """Result of a chunk that samples a token or scores prompt tokens.

    Attributes:
        token_ids: accepted draft tokens plus one sampled token; empty if the chunk does not sample
            or failed.
        num_draft_uncomputed: see `EngineRequest`. Pages are shared only once both models have
            written them.
        logprobs: one entry per token, if requested.
        prompt_logprobs: entries of the newly scored prompt tokens, after `num_scored`.
        error: message if the request failed, else None.
    """

    token_ids: Sequence[int]
    num_draft_uncomputed: int = 0
    logprobs: Sequence[Logprobs] | None = None
    prompt_logprobs: Sequence[Logprobs] = ()
    error: str | None = None
