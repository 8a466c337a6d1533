"""PagedModel: a model with paged KV storage, run on ragged batches.

The tokens of all requests, both prompt chunks and single decoded tokens, are concatenated without
padding, so that every weight is read only once per step.
"""

import math
import time
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx

from ...kv_storage.paged_storage import KvLayout
from ...kv_storage.step_plan import RaggedBatch
from ...models.families.decoder import Decoder
from ...models.output_heads import MtpDecoder

RowKind = Literal["page", "state"]
ROW_KINDS: tuple[RowKind, ...] = ("page", "state")


@dataclass(frozen=True)
class Span:
    """Contiguous tokens of one request, as part of a ragged batch.

    Attributes:
        token_ids: at least one token.
        page_ids: the request's pages, block after block, with pages for all tokens.
        state_read_slot: slot of the state before the span; −1 if `start` is 0 or there is no state.
        state_writes: (token index in the span, slot for the recurrent state after it) pairs.
        adapter: index of the request's LoRA adapter; −1 for none.
    """

    token_ids: Sequence[int]
    start: int
    page_ids: array
    state_read_slot: int = -1
    state_writes: Sequence[tuple[int, int]] = ()
    adapter: int = -1


class PagedModel:
    """A model with its KV pages and recurrent state slots.

    Args:
        layout: see `create_paged_storage`.

    Attributes:
        seconds: total time spent in the model and in sampling from its logits.
    """

    def __init__(
        self,
        model: Decoder,
        num_pages: int,
        num_state_slots: int = 0,
        layout: KvLayout | None = None,
    ):
        self.model = model
        self.vocab_size = model.vocab_size
        self.page_size = model.page_size
        self.seconds = 0.0
        self._storage = model.create_paged_storage(num_pages, num_state_slots, layout)
        self.layout = self._storage.layout

    @property
    def nbytes(self) -> int:
        return self._storage.nbytes

    @property
    def unused_bytes(self) -> int:
        """Bytes of KV and state memory that are reserved, but not in use."""
        return self._storage.reserved_bytes - self.nbytes

    def row_bytes(self, kind: RowKind) -> int:
        return sum(map(_row_bytes, self._row_arrays(kind)))

    def read_row(self, kind: RowKind, index: int) -> bytes:
        """Returns a copy of the bytes of a page or state slot, layer after layer."""
        parts = []
        for x in self._row_arrays(kind):
            size = _row_bytes(x)
            memory = memoryview(mx.view(x, mx.uint8)).cast("B")  # type: ignore[arg-type]
            parts.append(memory[index * size : (index + 1) * size])
        return b"".join(parts)

    def write_rows(self, kind: RowKind, indices: Sequence[int], rows: Sequence[memoryview]) -> None:
        """Writes bytes from `read_row` to pages or state slots."""
        if kind == "page":
            data = mx.stack([mx.array(row) for row in rows])  # type: ignore[arg-type]  # uint8
            self._storage.write_pages(indices, data)
            return
        if self._storage.states is not None:
            self._storage.states.resident.update(indices)
        arrays = self._row_arrays(kind)
        for index, row in zip(indices, rows, strict=True):
            data, start = mx.array(row), 0  # type: ignore[arg-type]  # uint8
            for x in arrays:
                end = start + _row_bytes(x)
                x[index] = mx.view(data[start:end], x.dtype).reshape(x.shape[1:])
                start = end
        mx.eval(*arrays)

    def worker_fingerprints(self) -> list[bytes]:
        """Returns the fingerprints of the other ranks' models, if there are any."""
        return []

    def populate(self, num_pages: int, num_slots: int) -> None:
        """Allocates physical memory for the first pages and state slots."""
        self._storage.populate(num_pages, num_slots)

    def release(self, pages: Collection[int], slots: Collection[int]) -> None:
        """Returns the physical memory of unused pages and state slots; see `PagedStorage`."""
        self._storage.release(pages, slots)

    def release_scratch(self) -> None:
        """Frees scratch memory; a no-op in a single process, which will reuse it."""

    def logits(self, spans: Sequence[Span], rows: Sequence[int]) -> mx.array:
        """Computes logits, len(rows)×V; writes keys and values into the pages.

        Args:
            spans: T tokens in total.
            rows: indices, among the T tokens, of those whose logits are returned.
        """
        return self._evaluate(lambda: self._graph(self._ids(spans), spans, rows))

    def features(
        self, spans: Sequence[Span], rows: Sequence[int], hidden: mx.array | None = None
    ) -> mx.array:
        """Like `logits`, but returns hidden states after the final norm, len(rows)×E.

        Args:
            hidden: T×E, second input of an `MtpDecoder`; None for other models.
        """
        ids, storage, model = self._ids(spans), self._storage, self.model
        batch = ragged_batch(spans, self.layout, model.state_bytes > 0)
        if hidden is not None:
            assert isinstance(model, MtpDecoder)
            return self._evaluate(lambda: model.mtp_features(ids, hidden, batch, rows, storage))
        return self._evaluate(lambda: model.ragged_features(ids, batch, rows, storage))

    def lm_head(self, features: mx.array) -> mx.array:
        """Computes logits N×V from N hidden states, N×E."""
        return self._evaluate(lambda: self.model.w_lm_head(features))

    def logits_async(self, ids: mx.array, spans: Sequence[Span], rows: Sequence[int]) -> mx.array:
        """Like `logits`, but asynchronous; `ids` (T) replaces the spans' tokens."""
        logits = self._graph(ids, spans, rows)
        mx.async_eval(logits, self._storage.arrays)
        return logits

    def complete_writes(self) -> None:
        """Evaluates the writes of an interrupted step; the rows have no owner."""
        mx.eval(self._storage.arrays)

    def _row_arrays(self, kind: RowKind) -> list[mx.array]:
        """Returns all layers' arrays, with one row per page or state slot.

        Keep no references to the arrays, because MLX would then copy them on the next write.
        """
        if kind == "page":
            return self._storage.page_arrays
        states = self._storage.states
        return [] if states is None else states.arrays

    def _ids(self, spans: Sequence[Span]) -> mx.array:
        # Only a draft model can get an id ≥ V, from the target's padded vocabulary. Clamping it can
        # at worst cost a rejected draft token.
        last = self.vocab_size - 1
        ids = [min(token, last) for span in spans for token in span.token_ids]
        return mx.array(ids, dtype=mx.int32)

    def _evaluate(self, compute: Callable[[], mx.array]) -> mx.array:
        """Starts the evaluation; waits for it only if the result has no rows to sample from."""
        started = time.perf_counter()
        result = compute()
        # Without rows, `result` does not depend on the storage, so evaluate both.
        evaluate = mx.async_eval if result.shape[0] else mx.eval
        evaluate(result, self._storage.arrays)
        self.seconds += time.perf_counter() - started
        return result

    def _graph(self, ids: mx.array, spans: Sequence[Span], rows: Sequence[int]) -> mx.array:
        batch = ragged_batch(spans, self.layout, self.model.state_bytes > 0)
        return self.model.ragged_logits(ids, batch, rows, self._storage)


def _row_bytes(x: mx.array) -> int:
    return math.prod(x.shape[1:]) * x.dtype.size


def ragged_batch(spans: Sequence[Span], layout: KvLayout, has_state: bool = False) -> RaggedBatch:
    positions: list[int] = []  # T
    ends = [0]  # B + 1
    for span in spans:
        positions += range(span.start, span.start + len(span.token_ids))
        ends.append(len(positions))
    lengths = [span.start + len(span.token_ids) for span in spans]
    tables: list[Any] = [
        [layout.pages_of(span.page_ids, table) for span in spans] for table in layout.tables
    ]
    slots: list[Any] = []
    for table, pages_by_span in zip(layout.tables, tables, strict=True):
        size = layout.page_size // table.num_pages  # tokens per page
        slots.append([])
        for span, pages in zip(spans, pages_by_span, strict=True):
            span_positions = range(span.start, span.start + len(span.token_ids))
            slots[-1] += [pages[p // size] * size + p % size for p in span_positions]
    if len(tables) == 1:
        [tables], [slots] = tables, slots
    adapters = None
    if any(span.adapter >= 0 for span in spans):
        adapters = [span.adapter for span in spans for _ in span.token_ids]
    if not has_state:
        return RaggedBatch(positions, slots, ends, lengths, tables, adapter_ids=adapters)
    assert all((span.state_read_slot < 0) == (span.start == 0) for span in spans)
    read_slots = [span.state_read_slot for span in spans]
    write_slots = [-1] * len(positions)
    for first, span in zip(ends, spans, strict=False):
        for index, slot in span.state_writes:
            write_slots[first + index] = slot
    return RaggedBatch(positions, slots, ends, lengths, tables, read_slots, write_slots, adapters)
