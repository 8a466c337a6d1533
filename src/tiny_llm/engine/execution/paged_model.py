"""PagedModel: a model with paged KV storage, run on ragged batches.

The tokens of all requests, prompt chunks and single decoded tokens, are concatenated without
padding. Every weight is therefore read once per step.
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
    """Adjacent tokens of one request, part of a ragged batch.

    Attributes:
        token_ids: at least one token.
        start: position of the first token.
        page_ids: the request's block table, with room for all tokens.
    """

    token_ids: Sequence[int]
    start: int
    page_ids: array


class PagedModel:
    """A model and the pages of its keys and values.

    Args:
        model: computes logits over pages.
        num_pages: number of pages.

    Attributes:
        seconds: total time spent in the model.
    """

    def __init__(self, model: ServingModel, num_pages: int):
        self.model = model
        self.vocab_size = model.vocab_size
        self.page_size = model.page_size
        self.seconds = 0.0
        self._storage = model.create_paged_storage(num_pages)

    @property
    def nbytes(self) -> int:
        """Allocated bytes of KV memory."""
        return self._storage.nbytes

    def reserve(self) -> None:
        """Allocates the memory of all pages."""
        self._storage.ensure_capacity(self._storage.num_pages)

    def on_worker_lost(self, callback: Callable[[str], None]) -> None:
        """Registers a callback for lost workers; a no-op in a single process."""

    def release_scratch(self) -> None:
        """Frees scratch memory; a no-op in a single process, which keeps it for the next step."""

    def logits(self, spans: Sequence[Span], rows: Sequence[int]) -> mx.array:
        """Runs the model and writes keys and values into the pages.

        Args:
            spans: T tokens together.
            rows: indices, of the T tokens, whose logits are returned.

        Returns:
            len(rows)×V.
        """
        # Only a draft model can get an id ≥ V, from the target's padded vocabulary. Clamping it can
        # only make a draft token wrong.
        last = self.vocab_size - 1
        ids = [min(token, last) for span in spans for token in span.token_ids]  # T
        started = time.perf_counter()
        logits = self._graph(mx.array(ids, dtype=mx.int32), spans, rows)
        # Pages explicitly: a chunk within a prompt has no logits that depend on them.
        mx.eval(logits, self._storage.key_pages, self._storage.value_pages)
        self.seconds += time.perf_counter() - started
        return logits

    def logits_async(self, ids: mx.array, spans: Sequence[Span], rows: Sequence[int]) -> mx.array:
        """Asynchronous `logits`, with `ids` in place of the spans' tokens.

        Args:
            ids: T token ids, possibly not computed yet.
            spans, rows: see `logits`.
        """
        logits = self._graph(ids, spans, rows)
        mx.async_eval(logits, self._storage.key_pages, self._storage.value_pages)
        return logits

    def _graph(self, ids: mx.array, spans: Sequence[Span], rows: Sequence[int]) -> mx.array:
        batch = ragged_batch(spans, self.page_size)
        return self.model.ragged_logits(ids, batch, rows, self._storage)


def ragged_batch(spans: Sequence[Span], page_size: int) -> RaggedBatch:
    """Builds the positions, slots, sequence bounds and block tables of a batch."""
    positions: list[int] = []  # T
    slots: list[int] = []  # T
    ends = [0]  # B + 1
    for span in spans:
        span_positions = range(span.start, span.start + len(span.token_ids))
        positions += span_positions
        slots += [span.page_ids[p // page_size] * page_size + p % page_size for p in span_positions]
        ends.append(len(positions))
    lengths = [span.start + len(span.token_ids) for span in spans]
    return RaggedBatch(positions, slots, ends, lengths, [span.page_ids for span in spans])
