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

from .. import kernels
from .paged_model import PagedModel, Span
from .step import Chunk


@dataclass(frozen=True)
class Foreseen:
    """A request's next token.

    Attributes:
        row: of the logits.
        position: the token's.
        page: in which its key and value are.
    """

    row: int
    position: int
    page: int


class LookAhead:
    """What is computed ahead of the scheduler, for a model.

    Args:
        model: computes the steps.

    Attributes:
        is_on: on a GPU. On a CPU the model and Python would share the cores.
        num_used, num_dropped: how often what was foreseen came, and how often it did not.
    """

    def __init__(self, model: PagedModel):
        self.is_on = not kernels.computes_on_cpu()
        self.num_used = 0
        self.num_dropped = 0
        self._model = model
        self._foreseen: dict[int, Foreseen] = {}  # by the requests' order of arrival
        self._logits: mx.array | None = None

    def begin(self, chunks: Sequence[Chunk], tokens: mx.array) -> None:
        """Runs the model for those requests of a step whose answers are likely to go on.

        Args:
            chunks: those that sample, without guesses.
            tokens: the next token of each, which need not be computed yet.
        """
        self._foreseen = {}
        places: list[int] = []
        spans: list[Span] = []
        page_size = self._model.page_size
        for place, chunk in enumerate(chunks):
            request, position = chunk.request, chunk.end
            assert request.max_tokens is not None
            has_page = position < len(request.page_ids) * page_size
            if has_page and request.num_output_tokens + 1 < request.max_tokens:
                page = request.page_ids[position // page_size]
                self._foreseen[request.arrival] = Foreseen(len(spans), position, page)
                places.append(place)
                spans.append(Span([0], position, request.page_ids))
        if spans:
            rows = list(range(len(spans)))
            self._logits = self._model.start(tokens[mx.array(places)], spans, rows)

    def take(self, chunks: Sequence[Chunk]) -> mx.array | None:
        """The logits of a step, a row for each chunk, if it is what was foreseen; None if not."""
        logits, self._logits = self._logits, None
        if logits is None:
            return None
        rows = [self._row(chunk) for chunk in chunks]
        if None in rows:
            self.num_dropped += 1
            return None
        self.num_used += 1
        return logits if len(rows) == logits.shape[0] else logits[mx.array(rows)]

    def _row(self, chunk: Chunk) -> int | None:
        """The row with the chunk's logits, if the chunk is what was foreseen of its request."""
        foreseen = self._foreseen.get(chunk.request.arrival)
        if foreseen is None or chunk.num_drafts:
            return None
        if (chunk.start, chunk.end) != (foreseen.position, foreseen.position + 1):
            return None
        page = chunk.request.page_ids[chunk.start // self._model.page_size]
        return foreseen.row if page == foreseen.page else None
