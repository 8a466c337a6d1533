"""Drafters: draft tokens from a small model or the target's MTP layer, for a whole step.

The draft model proposes tokens one by one, cheaply. The target model verifies all of them in one
step and accepts those that it would have sampled itself:

    scheduler's step       the request's last token, and slots for 3 draft tokens
    draft, three rounds    of France .
    target, one step       of France is       two accepted, plus one sampled token

Both models sample with the same noise (see `sampler.py`), and a draft token is accepted if and only
if it *equals* the target's sample at that position. The output is therefore the same with and
without a draft model.

Rejection sampling (`tiny_llm.generate.speculative`) has a slightly higher acceptance rate: 1 − d,
where d is the models' total variation distance, versus at least (1 − d) / (1 + d) here. However,
its output depends on where drafting began, and hence on the other requests.

Source: Daliri et al., "Coupling without communication and drafter-invariant speculative decoding"
(2024), arXiv 2408.07978.

The draft model's pages and state slots have the target's numbers, so both models share one block
table, one allocator and one prefix cache.
"""

import time
from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

import mlx.core as mx

from ..execution.paged_model import PagedModel, Span
from ..execution.sampler import SamplingRow, sample_tokens, to_ints
from ..scheduling.request import Chunk, ChunkOutput, EngineRequest


class DraftModel:
    """Proposes draft tokens for the chunks in a step.

    Args:
        model: the draft model, with the same number of pages as the target.
        target_vocab_size: the target's V; draft tokens are restricted to the target's vocabulary.
    """

    def __init__(self, model: PagedModel, target_vocab_size: int):
        self.model = model
        self._target_vocab_size = target_vocab_size

    def propose(self, chunks: Sequence[Chunk]) -> list[list[int]]:
        """Returns `num_drafts` draft tokens for each chunk.

        The draft model also computes the chunks, prompts included, so that its KV cache covers the
        target's tokens, except for the last draft token: if accepted, the next step computes it.
        """
        draft_tokens: list[list[int]] = [[] for _ in chunks]
        active = [index for index, chunk in enumerate(chunks) if chunk.num_drafts]
        logits = self._first_logits(chunks)
        while active:
            sampling_rows = [
                SamplingRow(
                    chunks[index].request,
                    chunks[index].request.num_output_tokens + len(draft_tokens[index]),
                    tuple(draft_tokens[index]),
                )
                for index in active
            ]
            started = time.perf_counter()
            logits = logits[:, : self._target_vocab_size]
            tokens = to_ints(sample_tokens(logits, sampling_rows, self._target_vocab_size))
            self.model.seconds += time.perf_counter() - started
            for index, token in zip(active, tokens, strict=True):
                draft_tokens[index].append(token)
            active = [i for i in active if len(draft_tokens[i]) < chunks[i].num_drafts]
            if active:
                logits = self._next_logits(
                    [(chunks[index], draft_tokens[index]) for index in active]
                )
        return draft_tokens

    @staticmethod
    def num_uncomputed(num_draft_tokens: int, num_accepted: int) -> int:
        """Returns 1 if the last draft token, not yet computed, was accepted, else 0."""
        return int(num_accepted == num_draft_tokens > 0)

    def _first_logits(self, chunks: Sequence[Chunk]) -> mx.array:
        """Computes the chunks; returns one row of logits per chunk with draft tokens."""
        spans, rows, num_tokens = [], [], 0
        for chunk in chunks:
            request, start = chunk.request, chunk.start - chunk.request.num_draft_uncomputed
            writes = [
                (index + chunk.start - start, slot)
                for index, slot in chunk.state_writes
                if index < chunk.end - chunk.start
            ]
            tokens, states = request.token_ids[start : chunk.end], chunk.draft_state_read_slot
            spans.append(Span(tokens, start, request.page_ids, states, writes))
            num_tokens += chunk.end - start
            if chunk.num_drafts:
                rows.append(num_tokens - 1)
        return self.model.logits(spans, rows)

    def _next_logits(self, drafted: Sequence[tuple[Chunk, Sequence[int]]]) -> mx.array:
        spans = [self._draft_span(chunk, draft_tokens) for chunk, draft_tokens in drafted]
        return self.model.logits(spans, range(len(spans)))

    @staticmethod
    def _draft_span(chunk: Chunk, draft_tokens: Sequence[int]) -> Span:
        """Returns the last draft token's span, which reads the state before it."""
        start = chunk.end + len(draft_tokens) - 1
        index, slots = start - chunk.start, dict(chunk.state_writes)
        writes = [(0, slots[index])] if slots else ()
        page_ids, read = chunk.request.page_ids, slots.get(index - 1, -1)
        return Span(draft_tokens[-1:], start, page_ids, read, writes)


class MtpDrafter(DraftModel):
    """Proposes draft tokens with the target's multi-token prediction layer.

    The layer (`models/output_heads.py`) combines the target's hidden state at a position with the
    next token, so it runs after the target has sampled:

        target, one step    of France      hidden states at both positions; `is` is sampled
        layer               France is      the next tokens, at the same positions
        next step: draft    the city       LM head, layer on `the`, LM head
        target              is the city    verifies the draft tokens

    The layer's pages have the target's numbers and are written in the same step, so the prefix
    cache shares them, too. At a page's last position, the layer's keys and values depend on the
    next page's first token: for requests that continue differently, this can change draft tokens,
    but not the output.
    """

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
