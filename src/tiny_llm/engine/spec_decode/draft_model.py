"""DraftModel: draft tokens of a small model, for all requests of a step.

The draft model proposes the next tokens one by one, which is cheap. The target model computes all
of them in one step and keeps those that it would have sampled itself:

    scheduler's step       the request's last token, and slots for 3 draft tokens
    draft, three rounds    of France .
    target, one step       of France is       two accepted, plus one sampled token

Both models sample with the same noise (see `sampler.py`), so a draft token is accepted exactly if
it *equals* the token that the target samples there, greedy or not. Therefore the output is the same
with and without a draft model, and each token has the target's distribution.

Rejection sampling (`tiny_llm.generate.speculative`) accepts slightly more: 1 − d of the tokens,
where d is the total variation distance; here it is at least (1 − d) / (1 + d). But its output
depends on where drafting began, and hence on the other requests.

Source: Daliri et al., "Coupling without communication and drafter-invariant speculative decoding"
(2024), arXiv 2408.07978.

The draft model keeps its keys and values in separate arrays under the target's page numbers, so one
block table, one allocator and one prefix cache serve both models.
"""

import time
from collections.abc import Sequence

from ..execution.logits_processors import SamplingRow
from ..execution.paged_model import PagedModel, Span
from ..execution.sampler import sample_tokens, to_ints
from ..scheduling.batch import Chunk


class DraftModel:
    """Proposes draft tokens for the chunks of a step.

    Args:
        model: the draft model, with as many pages as the target.
        target_vocab_size: V of the target; only its tokens are proposed.

    Attributes:
        model: the draft model.
        sampling_seconds: time spent sampling draft tokens.
    """

    def __init__(self, model: PagedModel, target_vocab_size: int):
        self.model = model
        self.sampling_seconds = 0.0
        self._target_vocab_size = target_vocab_size

    def propose(self, chunks: Sequence[Chunk]) -> list[list[int]]:
        """Returns `num_drafts` draft tokens for each chunk.

        The draft model computes the chunks too, prompts included, so that its keys and values cover
        the same tokens as the target's. Only the last draft token is left to the next step.
        """
        draft_tokens: list[list[int]] = [[] for _ in chunks]
        spans, rows, num_tokens = [], [], 0
        for chunk in chunks:
            request, start = chunk.request, chunk.start - chunk.request.num_draft_uncomputed
            spans.append(Span(request.token_ids[start : chunk.end], start, request.page_ids))
            num_tokens += chunk.end - start
            if chunk.num_drafts:
                rows.append(num_tokens - 1)
        active = [index for index, chunk in enumerate(chunks) if chunk.num_drafts]
        while True:
            logits = self.model.logits(spans, rows)[:, : self._target_vocab_size]
            if not active:
                return draft_tokens
            sampling_rows = [
                SamplingRow(
                    chunks[index].request,
                    chunks[index].request.num_output_tokens + len(draft_tokens[index]),
                    tuple(draft_tokens[index]),
                )
                for index in active
            ]
            started = time.perf_counter()
            tokens = to_ints(sample_tokens(logits, sampling_rows, self._target_vocab_size))
            self.sampling_seconds += time.perf_counter() - started
            for index, token in zip(active, tokens, strict=True):
                draft_tokens[index].append(token)
            active = [i for i in active if len(draft_tokens[i]) < chunks[i].num_drafts]
            if not active:
                return draft_tokens
            spans = [
                Span(
                    draft_tokens[index][-1:],
                    chunks[index].end + len(draft_tokens[index]) - 1,
                    chunks[index].request.page_ids,
                )
                for index in active
            ]
            rows = list(range(len(spans)))


def count_accepted(draft_tokens: Sequence[int], sampled: Sequence[int]) -> int:
    """Returns the length of the longest prefix of the draft that the target sampled."""
    for index, token in enumerate(draft_tokens):
        if token != sampled[index]:
            return index
    return len(draft_tokens)


def num_draft_uncomputed(num_draft_tokens: int, num_accepted: int) -> int:
    """Returns 1 if all draft tokens were accepted: only the target has computed the last one."""
    return int(num_accepted == num_draft_tokens > 0)
