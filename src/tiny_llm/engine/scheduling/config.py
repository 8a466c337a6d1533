"""The limits that the scheduler keeps to."""

from dataclasses import dataclass

from ...errors import UserError, check_int


@dataclass(frozen=True)
class SchedulerConfig:
    """How much memory there is, and how much is computed at once.

    Attributes:
        num_pages: memory for keys and values, in pages.
        page_size: tokens in a page; vLLM's `block_size`.
        max_num_batched_tokens: tokens that a step computes at most, guesses included.
        max_num_seqs: requests that run at the same time at most.
        max_seq_len: tokens that a request may have, prompt and answer together.
        num_drafts: guesses that follow a token that is decoded; 0 without a draft model.
        enable_prefix_caching: whether requests share pages.
        max_queue: requests beyond `max_num_seqs` that may wait; None for any number.

    Raises:
        UserError: a number is not whole, or too small.
    """

    num_pages: int
    page_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_seq_len: int
    num_drafts: int = 0
    enable_prefix_caching: bool = True
    max_queue: int | None = None

    def __post_init__(self) -> None:
        for name in (
            "num_pages",
            "page_size",
            "max_num_batched_tokens",
            "max_num_seqs",
            "max_seq_len",
        ):
            check_int(name, getattr(self, name), 1)
        check_int("num_drafts", self.num_drafts, 0)
        if self.max_queue is not None:
            check_int("max_queue", self.max_queue, 0)
        decoding = self.max_num_seqs * (1 + self.num_drafts)
        if self.max_num_batched_tokens < decoding:
            draft_tokens = f" and {self.num_drafts} guesses" if self.num_drafts else ""
            raise UserError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}; {self.max_num_seqs} "
                f"requests (max_num_seqs) that decode a token{draft_tokens} each need {decoding}."
            )
