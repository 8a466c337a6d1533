"""Guesses of a small model, for every request of a step at once.

The draft model guesses the next tokens one by one, which is cheap. The target computes all of them
in one step, and keeps those that it would have chosen itself:

    step of the scheduler    the request's last token, and places for 3 guesses
    draft, three rounds      of France .
    target, one step         of France is       two guesses were right, and one token more

Both choose by the same noise (see `sampler.py`), so a guess is right exactly if it *is* the
token that the target chooses there, greedy or sampled. Therefore an answer has the same tokens
with and without a draft model, and each token has the target's distribution.

Rejection sampling (`tiny_llm.generate.speculative`) accepts a little more often: a share of 1 − d,
where d is the distance in total variation. Here the share is at least (1 − d) / (1 + d). But with
rejection, tokens depend on where guessing began, and so on the other requests.

Source: Daliri et al., "Coupling without communication and drafter-invariant speculative decoding"
(2024), arXiv 2408.07978.

The draft's keys and values are in its own arrays, in pages with the same numbers as the target's.
So one block table, one allocator and one prefix cache serve both models.
"""

import time
from collections.abc import Sequence

from ..execution.paged_model import PagedModel, Span
from ..execution.sampler import SamplingRow, sample_tokens, to_ints
from ..scheduling.batch import Chunk


class DraftModel:
    """Guesses for the chunks of a step.

    Args:
        model: the draft, with as many pages as the target.
        target_vocab_size: V of the target; only its tokens are guessed.

    Attributes:
        model: the draft.
        sampling_seconds: time spent choosing guesses.
    """

    def __init__(self, model: PagedModel, target_vocab_size: int):
        self.model = model
        self.sampling_seconds = 0.0
        self._target_vocab_size = target_vocab_size

    def propose(self, chunks: Sequence[Chunk]) -> list[list[int]]:
        """The guesses after each chunk, `num_drafts` of them.

        The draft computes the chunks too, prompts included, so that it has keys and values of the
        same tokens as the target. Only those of the last guess are left to the next step.
        """
        draft_tokens: list[list[int]] = [[] for _ in chunks]
        spans, rows, num_tokens = [], [], 0
        for chunk in chunks:
            request, start = chunk.request, chunk.start - chunk.request.num_draft_uncomputed
            spans.append(Span(request.token_ids[start : chunk.end], start, request.page_ids))
            num_tokens += chunk.end - start
            if chunk.num_drafts:
                rows.append(num_tokens - 1)
        guessing = [index for index, chunk in enumerate(chunks) if chunk.num_drafts]
        while True:
            logits = self.model.logits(spans, rows)[:, : self._target_vocab_size]
            if not guessing:
                return draft_tokens
            choosing = [
                SamplingRow(
                    chunks[index].request,
                    chunks[index].request.num_output_tokens + len(draft_tokens[index]),
                    tuple(draft_tokens[index]),
                )
                for index in guessing
            ]
            started = time.perf_counter()
            tokens = to_ints(sample_tokens(logits, choosing, self._target_vocab_size))
            self.sampling_seconds += time.perf_counter() - started
            for index, token in zip(guessing, tokens, strict=True):
                draft_tokens[index].append(token)
            guessing = [i for i in guessing if len(draft_tokens[i]) < chunks[i].num_drafts]
            if not guessing:
                return draft_tokens
            spans = [
                Span(
                    draft_tokens[index][-1:],
                    chunks[index].end + len(draft_tokens[index]) - 1,
                    chunks[index].request.page_ids,
                )
                for index in guessing
            ]
            rows = list(range(len(spans)))


def count_accepted(draft_tokens: Sequence[int], chosen: Sequence[int]) -> int:
    """How many guesses, from the first on, are the tokens that the target chose."""
    for index, guess in enumerate(draft_tokens):
        if guess != chosen[index]:
            return index
    return len(draft_tokens)


def num_draft_uncomputed(num_draft_tokens: int, num_accepted: int) -> int:
    """1 if all guesses were right: the target has computed the last one, the draft has not."""
    return int(num_accepted == num_draft_tokens > 0)
