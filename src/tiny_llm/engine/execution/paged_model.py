"""A model and its pages: computes tokens of several requests at once, as one ragged batch.

The tokens of all requests follow one another without padding, one token of an answer or a chunk of
a prompt. So every weight is read once in a step.
"""

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from ...kv_cache.paged_storage import RaggedBatch
from ...models import ServingModel


@dataclass(frozen=True)
class Span:
    """Tokens of one request that are computed now.

    Attributes:
        token_ids: at least one.
        start: the position of the first token.
        page_ids: the request's pages, enough for all tokens.
    """

    token_ids: Sequence[int]
    start: int
    page_ids: array


class PagedModel:
    """A model with pages for its keys and values.

    Args:
        model: computes logits over pages.
        num_pages: how many pages it may have.

    Attributes:
        seconds: time spent in the model so far.
    """

    def __init__(self, model: ServingModel, num_pages: int):
        self.model = model
        self.vocab_size = model.vocab_size
        self.page_size = model.page_size
        self.seconds = 0.0
        self._storage = model.create_paged_storage(num_pages)

    @property
    def nbytes(self) -> int:
        """Bytes that the pages take so far."""
        return self._storage.nbytes

    def reserve(self) -> None:
        """Takes the memory of all pages now."""
        self._storage.ensure_capacity(self._storage.num_pages)

    def on_worker_lost(self, callback: Callable[[str], None]) -> None:
        """Has a function called if other processes that compute a part of it are lost: none do."""

    def release_scratch(self) -> None:
        """Nothing is to be computed for now: one process keeps what steps use for the next."""

    def logits(self, spans: Sequence[Span], rows: Sequence[int]) -> mx.array:
        """Computes tokens, and writes their keys and values into the pages.

        Args:
            spans: T tokens in all.
            rows: the tokens, of the T, whose logits are returned.

        Returns:
            len(rows)×V.
        """
        # An id that the model does not have is in the target's padding, and this is the draft: it
        # can only make a guess wrong.
        last = self.vocab_size - 1
        ids = [min(token, last) for span in spans for token in span.token_ids]  # T
        started = time.perf_counter()
        logits = self._graph(mx.array(ids, dtype=mx.int32), spans, rows)
        # The logits of a chunk in the middle of a prompt are not asked for; its pages are needed.
        mx.eval(logits, self._storage.key_pages, self._storage.value_pages)
        self.seconds += time.perf_counter() - started
        return logits

    def logits_async(self, ids: mx.array, spans: Sequence[Span], rows: Sequence[int]) -> mx.array:
        """As `logits` for other tokens than the spans', and returns before they are computed.

        Args:
            ids: T. They need not be computed yet.
            spans, rows: see `logits`.
        """
        logits = self._graph(ids, spans, rows)
        mx.async_eval(logits, self._storage.key_pages, self._storage.value_pages)
        return logits

    def _graph(self, ids: mx.array, spans: Sequence[Span], rows: Sequence[int]) -> mx.array:
        batch = ragged_batch(spans, self.page_size)
        return self.model.ragged_logits(ids, batch, rows, self._storage)


def ragged_batch(spans: Sequence[Span], page_size: int) -> RaggedBatch:
    """Positions of the tokens, slots for their keys, and the pages that they may see."""
    positions: list[int] = []  # T
    slots: list[int] = []  # T
    ends = [0]  # B + 1
    for span in spans:
        own = range(span.start, span.start + len(span.token_ids))
        positions += own
        slots += [span.page_ids[p // page_size] * page_size + p % page_size for p in own]
        ends.append(len(positions))
    lengths = [span.start + len(span.token_ids) for span in spans]
    return RaggedBatch(positions, slots, ends, lengths, [span.page_ids for span in spans])
