"""SchedulerConfig: KV memory and batch limits."""

from dataclasses import dataclass

from ...errors import UserError, check_int


@dataclass(frozen=True)
class SchedulerConfig:
    """KV memory and batch limits.

    Attributes:
        num_pages: KV memory in pages.
        page_size: tokens per page; vLLM's `block_size`.
        max_num_batched_tokens: upper bound on tokens per step, draft tokens included.
        max_num_seqs: upper bound on concurrently running requests.
        max_seq_len: upper bound on prompt plus output tokens of a request.
        num_drafts: draft tokens per decoded token; 0 without a draft model.
        enable_prefix_caching: whether requests share pages.
        max_queue: queued requests allowed beyond `max_num_seqs`; None for no limit.

    Raises:
        UserError: a value is not an integer, or too small.
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
            per_request = f"1 + {self.num_drafts} draft tokens" if self.num_drafts else "1 token"
            raise UserError(
                f"max_num_batched_tokens must be at least {decoding} for max_num_seqs="
                f"{self.max_num_seqs} ({per_request} each), got {self.max_num_batched_tokens}."
            )
