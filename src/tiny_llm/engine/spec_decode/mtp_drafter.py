"""MtpDrafter: draft tokens from the target's multi-token prediction layer.

The layer (`models/heads/mtp.py`) combines the target's hidden state at a position with the next
token, so it runs after the target has sampled:

    target, one step    of France      hidden states at both positions; `is` is sampled
    layer               France is      the next tokens, at the same positions
    next step: draft    the city       LM head, layer on `the`, LM head
    target              is the city    verifies the draft tokens

The layer's pages have the target's numbers and are written in the same step, so the prefix cache
shares them, too. At a page's last position, the layer's keys and values depend on the next page's
first token: for requests that continue differently, this can change draft tokens, but not the
output.
"""

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import mlx.core as mx

from ..execution.paged_model import PagedModel, Span
from ..scheduling.outputs import Chunk, ChunkOutput
from ..scheduling.request import EngineRequest
from .draft_model import DraftModel


class MtpDrafter(DraftModel):
    """Proposes draft tokens with the MTP layer, which runs after the target."""

    def __init__(self, model: PagedModel):
        super().__init__(model, model.vocab_size)
        # Each request's MTP layer output, of size E, at its last computed position.
        self._hidden: WeakKeyDictionary[EngineRequest, mx.array] = WeakKeyDictionary()

    @staticmethod
    def num_uncomputed(num_draft_tokens: int, num_accepted: int) -> int:
        """Returns 0: `update` computes every accepted draft token."""
        return 0

    def update(
        self, chunks: Sequence[Chunk], hidden: mx.array, results: Mapping[str, ChunkOutput]
    ) -> None:
        """Runs the MTP layer on the chunks and the accepted draft tokens.

        Args:
            hidden: T×E, the target's hidden states in the step, including rejected draft tokens.
        """
        requests: list[EngineRequest] = []
        spans: list[Span] = []
        inputs: list[int] = []  # rows of `hidden` to run the MTP layer on
        first = 0
        for chunk in chunks:
            request = chunk.request
            tokens = request.token_ids[chunk.start + 1 : chunk.end + 1]
            if chunk.samples:
                tokens += results[request.request_id].token_ids
            if len(tokens) >= chunk.end - chunk.start:  # otherwise the request has failed
                requests.append(request)
                spans.append(Span(tokens, chunk.start, request.page_ids))
                inputs += range(first, first + len(tokens))
            first += chunk.num_tokens
        if spans:
            self._compute(requests, spans, hidden[mx.array(inputs)])

    def _first_logits(self, chunks: Sequence[Chunk]) -> mx.array:
        requests = [chunk.request for chunk in chunks if chunk.num_drafts]
        return self.model.lm_head(self._hidden_of(requests)) if requests else mx.zeros((0, 0))

    def _next_logits(self, drafted: Sequence[tuple[Chunk, Sequence[int]]]) -> mx.array:
        requests = [chunk.request for chunk, _ in drafted]
        spans = [
            Span(draft_tokens[-1:], chunk.end + len(draft_tokens) - 2, chunk.request.page_ids)
            for chunk, draft_tokens in drafted
        ]
        return self.model.lm_head(self._compute(requests, spans, self._hidden_of(requests)))

    def _hidden_of(self, requests: Sequence[EngineRequest]) -> mx.array:
        return mx.stack([self._hidden[request] for request in requests])

    def _compute(
        self, requests: Sequence[EngineRequest], spans: Sequence[Span], hidden: mx.array
    ) -> mx.array:
        """Runs the layer; stores and returns its outputs at the spans' ends, B×E."""
        rows, num_tokens = [], 0
        for span in spans:
            num_tokens += len(span.token_ids)
            rows.append(num_tokens - 1)
        features = self.model.features(spans, rows, hidden)
        for index, request in enumerate(requests):
            self._hidden[request] = features[index]
        return features
