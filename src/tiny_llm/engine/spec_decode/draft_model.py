"""DraftModel: draft tokens from a small model, for all requests in a step.

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
from collections.abc import Sequence

import mlx.core as mx

from ..execution.paged_model import PagedModel, Span
from ..execution.sampler import SamplingRow, sample_tokens, to_ints
from ..scheduling.outputs import Chunk


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
