"""The next step of requests that decode, sent to the GPU before the tokens of this one are read.

A step of decoding ends with numbers that Python must read: only then is it known which answers go
on. A GPU would wait until the scheduler has planned the next step and its graph is built. But most
answers do go on, and what they need is known: the token that this step chooses, wherever it lies,
and the place after the last. So the model is run with it at once, and the logits are kept.

If the scheduler then plans what was foreseen, they are there. If it plans anything else, a prompt's
chunk for example, they are dropped. What was written into pages does no harm: the place is the
request's own, and is written again, later in the same stream, by whoever needs it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from ... import kernels
from ..scheduling.batch import Chunk
from .paged_model import PagedModel, Span


@dataclass(frozen=True)
class PredictedToken:
    """A request's next token.

    Attributes:
        row: of the logits.
        position: the token's.
        page: in which its key and value are.
    """

    row: int
    position: int
    page: int


class AsyncScheduling:
    """What is computed ahead of the scheduler, for a model.

    Args:
        model: computes the steps.

    Attributes:
        enabled: on a GPU. On a CPU the model and Python would share the cores.
        num_hits, num_misses: how often what was foreseen came, and how often it did not.
    """

    def __init__(self, model: PagedModel):
        self.enabled = not kernels.computes_on_cpu()
        self.num_hits = 0
        self.num_misses = 0
        self._model = model
        self._predicted: dict[int, PredictedToken] = {}  # by the requests' order of arrival
        self._logits: mx.array | None = None

    def launch(self, chunks: Sequence[Chunk], tokens: mx.array) -> None:
        """Runs the model for those requests of a step whose answers are likely to go on.

        Args:
            chunks: those that sample, without guesses.
            tokens: the next token of each, which need not be computed yet.
        """
        self._predicted = {}
        places: list[int] = []
        spans: list[Span] = []
        page_size = self._model.page_size
        for place, chunk in enumerate(chunks):
            request, position = chunk.request, chunk.end
            assert request.max_tokens is not None
            has_page = position < len(request.page_ids) * page_size
            if has_page and request.num_output_tokens + 1 < request.max_tokens:
                page = request.page_ids[position // page_size]
                self._predicted[request.arrival_index] = PredictedToken(len(spans), position, page)
                places.append(place)
                spans.append(Span([0], position, request.page_ids))
        if spans:
            rows = list(range(len(spans)))
            self._logits = self._model.logits_async(tokens[mx.array(places)], spans, rows)

    def take_logits(self, chunks: Sequence[Chunk]) -> mx.array | None:
        """The logits of a step, a row for each chunk, if it is what was foreseen; None if not."""
        logits, self._logits = self._logits, None
        if logits is None:
            return None
        rows = [self._row(chunk) for chunk in chunks]
        if None in rows:
            self.num_misses += 1
            return None
        self.num_hits += 1
        return logits if len(rows) == logits.shape[0] else logits[mx.array(rows)]

    def _row(self, chunk: Chunk) -> int | None:
        """The row with the chunk's logits, if the chunk is what was foreseen of its request."""
        predicted = self._predicted.get(chunk.request.arrival_index)
        if predicted is None or chunk.num_drafts:
            return None
        if (chunk.start, chunk.end) != (predicted.position, predicted.position + 1):
            return None
        page = chunk.request.page_ids[chunk.start // self._model.page_size]
        return predicted.row if page == predicted.page else None
