"""SchedulerConfig: KV memory and batch limits; type of the events' listener."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...errors import UserError, check_int

Event = dict[str, Any]  # see `events.py`
Listener = Callable[[Event], None]


@dataclass(frozen=True)
class KvGroup:
    """Layers whose pages are allocated and freed together.

    Attributes:
        window: largest sliding window of the layers in tokens, before which pages are freed; 0 for
            full attention.
        num_pages: pages that hold a *block*, `page_size` tokens, of the layers.
    """

    window: int = 0
    num_pages: int = 1

    def max_pages(self, num_tokens: int, page_size: int, step_tokens: int) -> int:
        """Upper bound on the pages that a request of `num_tokens` tokens has at once."""
        num_blocks = -(-num_tokens // page_size)
        if self.window:
            num_blocks = min(num_blocks, self.max_blocks(page_size, step_tokens))
        return self.num_pages * num_blocks

    def max_blocks(self, page_size: int, step_tokens: int) -> int:
        """Upper bound on the blocks, with a window, that a step reads or writes for one request.

        A step of C tokens needs the keys of `window` + C − 1 tokens, one more if the draft model
        lags by a token, and the request's last shared block, which is never released. Another
        block is needed if these tokens begin inside a block.
        """
        return -(-(self.window + step_tokens + page_size) // page_size) + 1


def tokens_in_pages(
    groups: Sequence[KvGroup], num_pages: int, page_size: int, step_tokens: int
) -> int:
    """Returns the length of the longest request that fits, of at most `num_pages` blocks."""

    def pages_for(num_blocks: int) -> int:
        sizes = num_blocks * page_size, page_size, step_tokens
        return sum(group.max_pages(*sizes) for group in groups)

    return (bisect_right(range(num_pages + 1), num_pages, key=pages_for) - 1) * page_size


MIN_STATE_SLOTS = 2  # after a prefix cache hit, a request reads one slot and writes another


@dataclass(frozen=True)
class SchedulerConfig:
    """KV memory and batch limits.

    Attributes:
        page_size: tokens per block, which is one page unless `kv_groups` says otherwise; vLLM's
            `block_size`.
        max_num_batched_tokens: upper bound on tokens per step, draft tokens included.
        max_seq_len: upper bound on prompt plus output tokens of a request.
        num_drafts: draft tokens per decoding request and step; 0 without a draft model.
        max_queue: queued requests allowed beyond `max_num_seqs` running ones; None for no limit.
        num_state_slots: maximum number of recurrent state slots; 0 for a model without recurrent
            state.
        state_slot_pages: pages whose memory a used state slot takes; 0 if slots have other memory.
        kv_groups: by decreasing window, full attention first.
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
    kv_groups: tuple[KvGroup, ...] = (KvGroup(),)

    @property
    def has_windows(self) -> bool:
        return any(group.window for group in self.kv_groups)

    @property
    def block_pages(self) -> int:
        """Pages of a block, over all groups."""
        return sum(group.num_pages for group in self.kv_groups)

    def pages_for(self, num_tokens: int) -> int:
        """Upper bound on the pages that a request of `num_tokens` tokens has at once."""
        sizes = self.page_size, self.max_num_batched_tokens
        return sum(group.max_pages(num_tokens, *sizes) for group in self.kv_groups)

    @cached_property
    def max_tokens_in_pages(self) -> int:
        """Upper bound on a request's tokens in the KV cache, freed pages included."""
        if self.has_windows and self.pages_for(self.max_seq_len) <= self.num_pages:
            return self.max_seq_len
        num_pages = self.num_pages - math.ceil(MIN_STATE_SLOTS * self.state_slot_pages)
        sizes = self.page_size, self.max_num_batched_tokens
        return tokens_in_pages(self.kv_groups, num_pages, *sizes)

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
