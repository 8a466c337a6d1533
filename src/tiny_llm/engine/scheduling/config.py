"""SchedulerConfig: KV memory and batch limits."""

import math
from dataclasses import dataclass
from functools import cached_property

from ...errors import UserError, check_int

MIN_STATE_SLOTS = 2  # after a prefix cache hit, a request reads one slot and writes another


@dataclass(frozen=True)
class SchedulerConfig:
    """KV memory and batch limits.

    Attributes:
        page_size: tokens per page; vLLM's `block_size`.
        max_num_batched_tokens: upper bound on tokens per step, draft tokens included.
        max_seq_len: upper bound on prompt plus output tokens of a request.
        num_drafts: draft tokens per decoding request and step; 0 without a draft model.
        max_queue: queued requests allowed beyond `max_num_seqs` running ones; None for no limit.
        num_state_slots: maximum number of recurrent state slots; 0 for a model without recurrent
            state.
        state_slot_pages: pages whose memory a used state slot takes; 0 if slots have other memory.
        window: largest sliding window in tokens if every layer of the target and draft models has
            one, else 0; pages before it are freed.
    """

    num_pages: int
    page_size: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_seq_len: int
    num_drafts: int = 0
    enable_prefix_caching: bool = True
    max_queue: int | None = None
    num_state_slots: int = 0
    state_slot_pages: float = 0
    window: int = 0

    @property
    def max_pages_per_request(self) -> int:
        """Upper bound on the pages that a step reads or writes for one request.

        With a window, a step of C tokens needs the keys of `window` + C − 1 tokens, one more if the
        draft model lags by a token, and the request's last shared page, which is never released.
        Another page is needed if these tokens begin inside a page.
        """
        num_tokens = self.max_seq_len
        if self.window:
            num_tokens = self.window + self.max_num_batched_tokens + self.page_size
        return -(-num_tokens // self.page_size) + 1

    @cached_property
    def max_tokens_in_pages(self) -> int:
        """Upper bound on a request's tokens in the KV cache, freed pages included."""
        if self.window and self.max_pages_per_request <= self.num_pages:
            return self.max_seq_len
        num_pages = self.num_pages - math.ceil(MIN_STATE_SLOTS * self.state_slot_pages)
        return num_pages * self.page_size

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
        if self.num_state_slots:
            check_int("num_state_slots", self.num_state_slots, MIN_STATE_SLOTS)
        decoding = self.max_num_seqs * (1 + self.num_drafts)
        if self.max_num_batched_tokens < decoding:
            per_request = f"1 + {self.num_drafts} draft tokens" if self.num_drafts else "1 token"
            raise UserError(
                f"max_num_batched_tokens must be at least {decoding} for max_num_seqs="
                f"{self.max_num_seqs} ({per_request} each), got {self.max_num_batched_tokens}."
            )
