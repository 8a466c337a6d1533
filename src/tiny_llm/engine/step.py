"""What passes between the scheduler and the model: a step's chunks there, their tokens back."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import UserError
from .request import Request
from .sampling_params import check_whole


@dataclass(frozen=True)
class SchedulerConfig:
    """What the scheduler keeps to.

    Attributes:
        num_pages: the memory for keys and values, in pages.
        page_size: tokens a page holds.
        max_batch_tokens: computed in a step, guesses included.
        max_num_seqs: requests that run at the same time.
        max_seq_len: tokens a request may have, prompt and answer.
        num_drafts: guesses that follow a token that is decoded; 0 without a draft model.
        enable_prefix_cache: whether requests share pages.

    Raises:
        UserError: a number is too small, or no whole one.
    """

    num_pages: int
    page_size: int
    max_batch_tokens: int
    max_num_seqs: int
    max_seq_len: int
    num_drafts: int = 0
    enable_prefix_cache: bool = True

    def __post_init__(self) -> None:
        for name in ("num_pages", "page_size", "max_batch_tokens", "max_num_seqs", "max_seq_len"):
            check_whole(name, getattr(self, name), 1)
        check_whole("num_drafts", self.num_drafts, 0)
        decoding = self.max_num_seqs * (1 + self.num_drafts)
        if self.max_batch_tokens < decoding:
            guesses = f" and {self.num_drafts} guesses" if self.num_drafts else ""
            raise UserError(
                f"max_batch_tokens is {self.max_batch_tokens}; {self.max_num_seqs} requests "
                f"(max_num_seqs) that decode a token{guesses} each need {decoding}."
            )


@dataclass(frozen=True)
class Chunk:
    """Tokens [start, end) of a request are computed, then `num_drafts` guesses after them.

    Attributes:
        samples: whether they are all the request has, so that the answer goes on.
    """

    request: Request
    start: int
    end: int
    num_drafts: int
    samples: bool

    @property
    def num_tokens(self) -> int:
        """What it takes of the step's budget."""
        return self.end - self.start + self.num_drafts


@dataclass(frozen=True)
class Step:
    """What is computed together.

    Attributes:
        index: counts the steps.
        chunks: at most one a request, at least one token each.
    """

    index: int
    chunks: tuple[Chunk, ...]

    @property
    def num_tokens(self) -> int:
        """Of all chunks; at most `max_batch_tokens`."""
        return sum(chunk.num_tokens for chunk in self.chunks)


@dataclass(frozen=True)
class ChunkResult:
    """What came of a chunk that samples.

    Attributes:
        token_ids: the answer's next tokens: the guesses that were right, and one more.
        num_unguessed: see `Request`. A page is shared when both models have written it.
    """

    token_ids: Sequence[int]
    num_unguessed: int = 0
