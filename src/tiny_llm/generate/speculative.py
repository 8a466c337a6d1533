"""Speculative decoding: a draft model proposes tokens that the target verifies.

A decode step reads all of a model's weights to compute one token; it could compute a few tokens in
the same time. The draft model proposes n tokens one by one, which is cheap, and the target computes
all n + 1 positions in one call. The accepted prefix of the draft tokens is appended to the output,
followed by one token from the target. `cache.rewind` drops the rejected tokens.

    sequence        … the capital                 (its last token is not in the caches yet)
    draft tokens                  of France .
    target tokens                 of France is    3 tokens for one target call

A round is one graph: the draft steps, then the target step with the draft tokens as a lazy array.
Unlike in other loops, the next round cannot be dispatched early on a GPU: the number of accepted
tokens determines both caches' offsets and the next draft input.

The draft model affects speed, not the output distribution. Sources: Leviathan et al. 2023
(arXiv 2211.17192) and Chen et al. 2023 (arXiv 2302.01318).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx

from ..engine.spec_decode.draft_tokens import SpeculationStatistics
from ..errors import check_int
from ..sampler import DistributionSampler, Sampler, sample
from ..sampling_ops import greedy_sample, log_softmax


class SpeculativeDecoding:
    """A decoding loop with a draft model: (target, prompt ids, sampler) -> ids.

    With a greedy sampler or a plain function as sampler, the tokens are identical to those of
    decoding without a draft model. With a `make_sampler` sampler at nonzero temperature, their
    distribution is identical. Both hold up to rounding: the last bits of the target's logits may
    depend on the number of positions per call.

    Args:
        draft_model: model of Week 2 or later with the target's vocabulary; its logits may have a
            different padded width.
        num_drafts: draft tokens per target call.

    Attributes:
        statistics: statistics of the latest generation, updated with every token.

    Raises:
        UserError: `num_drafts` is below 1.
    """

    def __init__(self, draft_model: Any, num_drafts: int = 4):
        check_int("num_drafts", num_drafts, 1)
        self.draft_model = draft_model
        self.num_drafts = num_drafts
        self.statistics = SpeculationStatistics()

    def __call__(self, model: Any, prompt_ids: Sequence[int], sampler: Sampler) -> Iterator[int]:
        """Yields token ids until the caller closes the iterator."""
        # [task 3.5.1 loop]
        self.statistics = statistics = SpeculationStatistics()
        rejection_sampler = sampler if isinstance(sampler, DistributionSampler) else None
        if rejection_sampler is not None and rejection_sampler.is_greedy:
            rejection_sampler = None  # greedy decoding verifies by matching
        target, draft = _CachedModel(model), _CachedModel(self.draft_model)
        ids = list(prompt_ids)
        try:
            while True:
                # No draft tokens during prefill: they would delay the first output token.
                count = self._num_drafts_now(target, draft, len(ids)) if target.offset else 0
                drafts, draft_probs = _propose(draft, ids, count, rejection_sampler, target.width)
                new_ids = mx.concatenate([mx.array(ids[target.offset :]), drafts])
                # Row i verifies draft token i; the last row follows all draft tokens.
                logits = target(new_ids)[-(count + 1) :]
                mx.eval(logits, drafts)
                if rejection_sampler is None:
                    accepted, token = verify_by_matching(logits, drafts, sampler)
                else:
                    target_probs = rejection_sampler.probabilities(log_softmax(logits))
                    accepted, token = verify_by_rejection(
                        target_probs, draft_probs, drafts, rejection_sampler
                    )
                target.truncate(len(ids) + accepted)
                draft.truncate(len(ids) + accepted)
                statistics.target_steps += 1
                statistics.num_draft_tokens += count
                draft_tokens: Any = drafts.tolist()
                for draft_token in draft_tokens[:accepted]:
                    statistics.num_accepted_tokens += 1
                    yield draft_token
                yield token
                ids += [*draft_tokens[:accepted], token]
        finally:
            target.release()
            draft.release()
        # [/task 3.5.1 loop]

    def _num_drafts_now(
        self, target: "_CachedModel", draft: "_CachedModel", num_tokens: int
    ) -> int:
        """Returns `num_drafts`, capped by the remaining context of both models.

        The draft model's context has room for one more, as the last draft token never enters its
        cache.
        """
        num_left = min(target.max_seq_len - num_tokens, draft.max_seq_len - num_tokens + 1)
        return int(max(0, min(self.num_drafts, num_left)))


def verify_by_matching(logits: mx.array, drafts: mx.array, sampler: Sampler) -> tuple[int, int]:
    """Accepts draft tokens while they match the sampler's choices.

    Args:
        logits: (n + 1)×V, the target's logits after the sequence and after each draft token.
        drafts: n draft token ids.
        sampler: any sampler. Called once per output token, in order, so a stateful random
            sampler draws the same numbers as without draft tokens.

    Returns:
        (number of accepted draft tokens, the token that follows them).
    """
    # [task 3.5.1 matching]
    choices: Iterator[Any]
    # A greedy sampler has no random state, so one call can sample all rows.
    if isinstance(sampler, DistributionSampler) and sampler.is_greedy:
        choices = iter(sample(sampler, logits).tolist())  # type: ignore[arg-type]
    else:
        choices = (int(sample(sampler, row[None])[0]) for row in logits)
    draft_tokens: Any = drafts.tolist()
    for accepted, (draft_token, choice) in enumerate(zip(draft_tokens, choices, strict=False)):
        if draft_token != choice:
            return accepted, choice
    return len(draft_tokens), next(choices)
    # [/task 3.5.1 matching]


def verify_by_rejection(
    target_probs: mx.array, draft_probs: mx.array, drafts: mx.array, sampler: DistributionSampler
) -> tuple[int, int]:
    """Accepts draft tokens with probability min(1, p/q); the output follows p.

    Where q exceeds p, a draft token is rejected with probability 1 − p/q. The replacement is drawn
    from the normalized residual max(p − q, 0). After the last draft token, q is zero, so the same
    formula draws from p.

    Args:
        target_probs: (n + 1)×V, distribution p after the sequence and after each draft token.
        draft_probs: n×V', distribution q of each draft token; the draft's vocabulary V' ≤ V.
        drafts: n draft token ids.
        sampler: source of random numbers.

    Returns:
        (number of accepted draft tokens, the token that follows them).
    """
    # [task 3.5.2]
    n, width = draft_probs.shape
    q = mx.pad(draft_probs, [(0, 1), (0, target_probs.shape[1] - width)])  # (n + 1)×V
    accepted = 0
    if n:
        p_of_draft = mx.take_along_axis(target_probs[:n], drafts[:, None], axis=1)[:, 0]
        q_of_draft = mx.take_along_axis(q[:n], drafts[:, None], axis=1)[:, 0]
        passed = sampler.uniform(n) * q_of_draft < p_of_draft
        # Number of draft tokens before the first rejection.
        accepted = int(mx.cumprod(passed.astype(mx.int32)).sum())
    surplus = mx.maximum(target_probs[accepted] - q[accepted], 0)
    # If p and q differ only by rounding, the residual can be zero: draw from p.
    surplus = mx.where(surplus.sum() > 0, surplus, target_probs[accepted])
    return accepted, int(sampler.draw(mx.log(surplus)[None])[0])
    # [/task 3.5.2]


class _CachedModel:
    """A model with its KV cache, which has `offset` tokens."""

    def __init__(self, model: Any):
        self._model = model
        self._cache = model.create_kv_cache()
        self.vocab_size: int | None = getattr(model, "vocab_size", None)
        self.max_seq_len: float = getattr(model, "max_seq_len", float("inf"))
        self.offset = 0
        self.width: int | None = None

    def __call__(self, ids: mx.array) -> mx.array:
        """Runs the model on the next L tokens: ids L -> logits L×V."""
        logits: mx.array = self._model(ids[None], self.offset, self._cache)[0]
        self.offset += ids.size
        self.width = logits.shape[-1]
        return logits

    def truncate(self, num_tokens: int) -> None:
        """Drops all but the first `num_tokens` cached tokens."""
        # [task 3.5.1 keep]
        surplus = self.offset - num_tokens
        if surplus > 0:
            for layer in self._cache:
                layer.rewind(surplus)
            self.offset = num_tokens
        # [/task 3.5.1 keep]

    def release(self) -> None:
        """Releases the cache."""
        for layer in self._cache:
            layer.release()


def _propose(
    draft: _CachedModel,
    ids: list[int],
    count: int,
    sampler: DistributionSampler | None,
    width: int | None,
) -> tuple[mx.array, mx.array]:
    """Proposes n = `count` tokens after `ids`: (ids n, distributions n×V').

    V' is the width of the draft's logits, truncated to `width`. Both arrays are lazy, so they are
    evaluated in one graph with the target's logits, without a sync per token.

    Args:
        draft: draft model; its cache may lag behind the sequence.
        sampler: draft sampler. If None, draft tokens are greedy and the distributions empty.
        width: width of the target's logits; token ids beyond it are not proposed.
    """
    # [task 3.5.1 propose]
    draft_tokens, distributions = [mx.zeros((0,), mx.int32)], [mx.zeros((0, 0))]
    if count:
        new_ids = mx.array(ids[draft.offset :])
        if draft.vocab_size is not None:
            # The target's vocabulary may be padded further than the draft's, so its tokens may be
            # out of the draft's range. Clamping them only lowers the acceptance rate.
            new_ids = mx.minimum(new_ids, draft.vocab_size - 1)
    for _ in range(count):
        logits = draft(new_ids)[-1:, :width]  # 1×V'
        if sampler is None:
            new_ids = greedy_sample(logits)
        else:
            shaped = sampler.logits(log_softmax(logits))
            new_ids = sampler.draw(shaped)
            distributions.append(mx.softmax(shaped, axis=-1))
        draft_tokens.append(new_ids.astype(mx.int32))
    return mx.concatenate(draft_tokens), mx.concatenate(distributions[-count:])
    # [/task 3.5.1 propose]
