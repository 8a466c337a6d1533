"""Async scheduling: launches decoding steps before the last tokens are read.

Otherwise, the GPU would idle while Python reads a step's tokens and schedules the next step. Most
requests continue, and their next input is known: the token just sampled, still on the device. So
the model is launched on that token at once, in a predicted step with the same requests.

If the scheduler then plans this step, its logits are ready. Otherwise, for example if it
adds a prompt chunk, the logits are discarded. Keys and values already written are harmless: their
slots belong to the request and are overwritten, later in the same stream, before they are read.
"""

from collections.abc import Sequence

import mlx.core as mx

from ... import kernels
from ..scheduling.outputs import Chunk
from ..scheduling.request import EngineRequest
from .paged_model import PagedModel, Span


class AsyncScheduling:
    """Launches decoding steps ahead of the scheduler.

    Attributes:
        enabled: False on a CPU, where the model and Python would compete for the cores.
        num_hits, num_misses: launched steps that the scheduler then did, or did not, plan.
    """

    def __init__(self, model: PagedModel):
        self.enabled = not kernels.computes_on_cpu()
        self.num_hits = 0
        self.num_misses = 0
        self._model = model
        # By arrival index: the row of the logits, and the launched token's position and page.
        self._predicted: dict[int, tuple[int, int, int]] = {}
        self._logits: mx.array | None = None

    def launch(self, chunks: Sequence[Chunk], tokens: mx.array) -> None:
        """Launches the next step for the requests that are expected to continue.

        Args:
            chunks: the step's chunks; each samples a token and has no draft tokens.
            tokens: the sampled token of each chunk, possibly not evaluated yet.
        """
        self._predicted = {}
        indices: list[int] = []
        spans: list[Span] = []
        for index, chunk in enumerate(chunks):
            request, position = chunk.request, chunk.end
            assert request.max_tokens is not None
            page = self._page(request, position)
            if page >= 0 and request.num_output_tokens + 1 < request.max_tokens:
                self._predicted[request.arrival_index] = len(spans), position, page
                indices.append(index)
                spans.append(Span([0], position, request.page_ids, adapter=request.adapter))
        if spans:
            rows = list(range(len(spans)))
            self._logits = self._model.logits_async(tokens[mx.array(indices)], spans, rows)

    def take_logits(self, chunks: Sequence[Chunk]) -> mx.array | None:
        """Returns the step's logits, a row per chunk; None unless all were predicted."""
        logits, self._logits = self._logits, None
        if logits is None:
            return None
        rows = [self._row(chunk) for chunk in chunks]
        if None in rows:
            self.num_misses += 1
            return None
        self.num_hits += 1
        return logits if rows == list(range(logits.shape[0])) else logits[mx.array(rows)]

    def _row(self, chunk: Chunk) -> int | None:
        predicted = self._predicted.get(chunk.request.arrival_index)
        if predicted is None or chunk.num_drafts:
            return None
        row, position, predicted_page = predicted
        if (chunk.start, chunk.end) != (position, position + 1):
            return None
        return row if self._page(chunk.request, chunk.start) == predicted_page else None

    def _page(self, request: EngineRequest, position: int) -> int:
        """The first page of a position's block; −1 if there is none."""
        index = position // self._model.page_size * self._model.layout.block_pages
        return request.page_ids[index] if index < len(request.page_ids) else -1
