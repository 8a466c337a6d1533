"""Speculative decoding: a small model drafts tokens, the large one verifies them in one call.

A decode step reads all weights of a model to compute one token. It could compute a few tokens in
the same time. So the draft guesses the next n tokens one by one, which is cheap, and the target
computes all n + 1 positions at once. The guesses are kept up to the first that the target would not
have made; the target's own token takes its place. `cache.rewind` forgets the rest.

    sequence        … the capital                 (its last token is in no cache yet)
    draft proposes                of France .
    target says                   of France is    3 tokens for one call of the target

A round is one graph: the draft's steps and the target's, which takes the guesses as an array. It is
read once, at its end. The next round cannot be sent off before that, as the other loops do on a
GPU: how many guesses are kept decides where both caches go on, and which token the draft begins
with.

The draft changes how fast an answer comes, and not the distribution of answers. See Leviathan et
al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (arXiv 2302.01318).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ..errors import UserError, check_int
from ..sampler import DistributionSampler, Sampler, greedy_sample, log_softmax, sample


@dataclass
class SpeculationStatistics:
    """How many guesses were right in one generation.

    Attributes:
        target_steps: calls of the target, the prompt's included.
        num_draft_tokens: tokens that the draft proposed.
        num_accepted_tokens: proposed tokens that became part of the answer.
    """

    target_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0

    def __str__(self) -> str:
        share = (
            f" ({self.num_accepted_tokens / self.num_draft_tokens:.0%})"
            if self.num_draft_tokens
            else ""
        )
        return (
            f"drafts: {self.num_accepted_tokens} of {self.num_draft_tokens} accepted{share}, "
            f"{self.target_steps} target steps"
        )


class SpeculativeDecoding:
    """A decoding loop, as those of `loops.py`: (target, prompt ids, sampler) -> token ids.

    With a greedy sampler, or any plain function, the tokens are those that target and sampler would
    choose without a draft. With a sampler of `make_sampler` at a temperature, the tokens have the
    distribution that they would have without a draft. Both hold up to the rounding of the target's
    logits, which may differ in the last bits between one position and several.

    Args:
        draft_model: from Week 2 on, as the target, and with the target's vocabulary. Its logits may
            be padded to another width.
        num_drafts: how many tokens to propose for each call of the target.

    Attributes:
        statistics: of the latest generation, updated with every token.

    Raises:
        UserError: `num_drafts` is below 1.
    """

    def __init__(self, draft_model: Any, num_drafts: int = 4):
        check_int("num_drafts", num_drafts, 1)
        self.draft_model = draft_model
        self.num_drafts = num_drafts
        self.statistics = SpeculationStatistics()

    def __call__(self, model: Any, prompt_ids: Sequence[int], sampler: Sampler) -> Iterator[int]:
        """Yields token ids, without end."""
        # [task 3.4.1 loop]
        self.statistics = statistics = SpeculationStatistics()
        rejection_sampler = sampler if isinstance(sampler, DistributionSampler) else None
        if rejection_sampler is not None and rejection_sampler.is_greedy:
            rejection_sampler = None  # the likeliest token is the same or it is not
        target, draft = _CachedModel(model), _CachedModel(self.draft_model)
        ids = list(prompt_ids)
        try:
            while True:
                # The first token does not wait for a draft.
                count = self._num_drafts_now(target, draft, len(ids)) if target.offset else 0
                drafts, draft_probs = _propose(draft, ids, count, rejection_sampler, target.width)
                new_ids = mx.concatenate([mx.array(ids[target.offset :]), drafts])
                logits = target(new_ids)[-(count + 1) :]  # after the sequence, and each draft
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
        # [/task 3.4.1 loop]

    def _num_drafts_now(
        self, target: "_CachedModel", draft: "_CachedModel", num_tokens: int
    ) -> int:
        """As many guesses as asked for, or as there is room for in both contexts.

        The draft does not compute its last guess.
        """
        room = min(target.max_seq_len - num_tokens, draft.max_seq_len - num_tokens + 1)
        return int(max(0, min(self.num_drafts, room)))


def verify_by_matching(logits: mx.array, drafts: mx.array, sampler: Sampler) -> tuple[int, int]:
    """Accepts drafts while the sampler, given the target's distribution, chooses the same.

    Args:
        logits: (n + 1)×V, the target's after the sequence and after each draft.
        drafts: n ids.
        sampler: any sampler. It is called once for each token of the answer, in order, so a
            function with random numbers draws the same ones as without drafts.

    Returns:
        (how many drafts are accepted, the token that follows them).
    """
    # [task 3.4.1 matching]
    choices: Iterator[Any]
    if isinstance(sampler, DistributionSampler) and sampler.is_greedy:  # one call does for all
        choices = iter(sample(sampler, logits).tolist())  # type: ignore[arg-type]
    else:
        choices = (int(sample(sampler, row[None])[0]) for row in logits)
    draft_tokens: Any = drafts.tolist()
    for accepted, (draft_token, choice) in enumerate(zip(draft_tokens, choices, strict=False)):
        if draft_token != choice:
            return accepted, choice
    return len(draft_tokens), next(choices)
    # [/task 3.4.1 matching]


def verify_by_rejection(
    target_probs: mx.array, draft_probs: mx.array, drafts: mx.array, sampler: DistributionSampler
) -> tuple[int, int]:
    """Accepts a draft with probability min(1, p/q), so that the outcome is distributed as p.

    If the draft q proposes a token too often, the surplus is rejected. The token is then drawn from
    those that q proposes too rarely: max(p − q, 0), normalized. After the last draft, q is zero and
    the same formula draws from p itself.

    Args:
        target_probs: (n + 1)×V, the distribution p after the sequence and after each draft.
        draft_probs: n×V', the distribution q that each draft was drawn from, V' ≤ V.
        drafts: n ids.
        sampler: draws the random numbers.

    Returns:
        (how many drafts are accepted, the token that follows them).
    """
    # [task 3.4.2]
    n, width = draft_probs.shape
    q = mx.pad(draft_probs, [(0, 1), (0, target_probs.shape[1] - width)])  # (n + 1)×V
    accepted = 0
    if n:
        p_of_draft = mx.take_along_axis(target_probs[:n], drafts[:, None], axis=1)[:, 0]
        q_of_draft = mx.take_along_axis(q[:n], drafts[:, None], axis=1)[:, 0]
        passed = sampler.uniform(n) * q_of_draft < p_of_draft
        accepted = int(mx.cumprod(passed.astype(mx.int32)).sum())  # up to the first that fails
    surplus = mx.maximum(target_probs[accepted] - q[accepted], 0)
    # Distributions that differ by rounding only can leave nothing; either is then as good.
    surplus = mx.where(surplus.sum() > 0, surplus, target_probs[accepted])
    return accepted, int(sampler.draw(mx.log(surplus)[None])[0])
    # [/task 3.4.2]


def check_same_vocabulary(draft_tokenizer: Any, tokenizer: Any) -> None:
    """Checks that the token ids of draft and target mean the same tokens.

    Args:
        draft_tokenizer, tokenizer: as `mlx_lm.load` returns them. One without `get_vocab` is not
            checked.

    Raises:
        UserError: they differ.
    """
    if not (hasattr(draft_tokenizer, "get_vocab") and hasattr(tokenizer, "get_vocab")):
        return
    drafts, targets = draft_tokenizer.get_vocab(), tokenizer.get_vocab()
    if drafts == targets:
        return
    token, token_id = min(drafts.items() ^ targets.items(), key=lambda item: item[1])
    raise UserError(
        "the draft model's tokenizer is not the target's: it has "
        f"{len(drafts)} tokens and the target's {len(targets)}, and they differ at token "
        f"{token_id} ({token!r}); draft and target must share one vocabulary."
    )


class _CachedModel:
    """A model with a cache of its own.

    Attributes:
        offset: how many tokens are in the cache.
        vocab_size, max_seq_len: the model's, if it has them.
        width: of the logits, V; None before the first call.
    """

    def __init__(self, model: Any):
        self._model = model
        self._cache = model.create_kv_cache()
        self.vocab_size: int | None = getattr(model, "vocab_size", None)
        self.max_seq_len: float = getattr(model, "max_seq_len", float("inf"))
        self.offset = 0
        self.width: int | None = None

    def __call__(self, ids: mx.array) -> mx.array:
        """The next L ids -> logits L×V."""
        logits: mx.array = self._model(ids[None], self.offset, self._cache)[0]
        self.offset += ids.size
        self.width = logits.shape[-1]
        return logits

    def truncate(self, num_tokens: int) -> None:
        """Forgets all but the first `num_tokens` tokens."""
        # [task 3.4.1 keep]
        surplus = self.offset - num_tokens
        if surplus > 0:
            for layer in self._cache:
                layer.rewind(surplus)
            self.offset = num_tokens
        # [/task 3.4.1 keep]

    def release(self) -> None:
        """Gives up the cache."""
        for layer in self._cache:
            layer.release()


def _propose(
    draft: _CachedModel,
    ids: list[int],
    count: int,
    sampler: DistributionSampler | None,
    width: int | None,
) -> tuple[mx.array, mx.array]:
    """The draft's guesses for the tokens after `ids`: (n ids, the distributions n×V').

    The guesses are a lazy graph. It is evaluated together with the target's logits, without a round
    trip for each guess.

    Args:
        draft: its cache may be some tokens behind.
        ids: the sequence.
        count: n.
        sampler: draws the guesses. If None, each is the likeliest token and the distributions are
            empty.
        width: of the target's logits; tokens beyond it are not guessed.
    """
    # [task 3.4.1 propose]
    draft_tokens, distributions = [mx.zeros((0,), mx.int32)], [mx.zeros((0, 0))]
    if count:
        new_ids = mx.array(ids[draft.offset :])
        if draft.vocab_size is not None:
            # The target's padding may go further than the draft's. A token that the draft does
            # not have spoils its guess, and nothing else.
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
    # [/task 3.4.1 propose]
