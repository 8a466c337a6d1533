"""The decoding loops of Weeks 1 and 2, and the functions that answer a prompt with one of them.

A decoding loop is an endless iterator of token ids: it knows the model and the sampler, and nothing
of text. `stream` turns its tokens into an answer.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx

from ..sampler import Sampler, sample
from .speculative import SpeculativeDecoding, check_same_vocabulary
from .stream import stream_generate

Logits = Callable[[mx.array], mx.array]

PREFILL_STEP = 1024  # tokens of a prompt that are computed at once


def simple_generate(
    model: Logits,
    tokenizer: Any,
    prompt: str | Sequence[int],
    sampler: Sampler | None = None,
    max_tokens: int | None = None,
) -> str:
    """Answers a prompt by running the model over the whole sequence for every new token.

    Args:
        model: ids 1×L -> logits 1×L×V.
        tokenizer: as `mlx_lm.load` returns it.
        prompt: text, encoded as it stands (no chat template is added), or token ids.
        sampler: logprobs 1×V -> ids 1; greedy if None.
        max_tokens: stop after this many new tokens; None goes on to an end token or until the
            model's context is full.

    Returns:
        The answer, without the prompt and the end token.

    Raises:
        UserError: an empty prompt, one longer than the model's context, a token id that the model
            does not have, `max_tokens` below 1.
    """
    return "".join(
        response.text
        for response in stream_generate(
            decode_by_recomputing, model, tokenizer, prompt, sampler, max_tokens
        )
    )


def decode_by_recomputing(
    model: Logits, prompt_ids: Sequence[int], sampler: Sampler
) -> Iterator[int]:
    """The slowest decoding loop, and the oracle of all others: no state but the tokens.

    The first step computes the prompt (prefill). Every later step computes the prompt and all new
    tokens again, so N tokens cost O(N²) runs of the layers.

    Yields:
        Token ids, without end.
    """
    # [task 1.6.1 decode]
    ids = list(prompt_ids)
    while True:
        logits = model(mx.array([ids]))[:, -1, :]  # 1×V, after the last token
        token = int(sample(sampler, logits)[0])
        yield token
        ids.append(token)
    # [/task 1.6.1 decode]


def simple_generate_with_kv_cache(
    model: Any,
    tokenizer: Any,
    prompt: str | Sequence[int],
    sampler: Sampler | None = None,
    max_tokens: int | None = None,
) -> str:
    """Answers a prompt with a model that has a KV cache. Arguments and errors: `simple_generate`.

    Args:
        model: from Week 2 on: (ids B×L, offset, cache) -> logits B×L×V, and `create_kv_cache`.
    """
    return "".join(
        response.text
        for response in stream_generate(
            decode_with_cache, model, tokenizer, prompt, sampler, max_tokens
        )
    )


def decode_with_cache(
    model: Any, prompt_ids: Sequence[int], sampler: Sampler
) -> Iterator[mx.array]:
    """Computes the prompt once (prefill), then one token a step: N tokens cost O(N) layer runs.

    Yields:
        Token ids, without end, each an array of one that is computed when it is looked at. So the
        caller may ask for the next before: its step is then a part of the same graph.
    """
    # [task 2.1.4]
    cache = model.create_kv_cache()
    offset = 0
    try:
        # A long prompt in pieces: activations then take memory for a piece, not for the prompt.
        while len(prompt_ids) - offset > PREFILL_STEP:
            piece = mx.array([prompt_ids[offset : offset + PREFILL_STEP]])
            mx.eval(next_token_logits(model, piece, offset, cache))
            offset += PREFILL_STEP
        new_ids = mx.array([prompt_ids[offset:]])  # 1×L
        while True:
            token = sample(sampler, next_token_logits(model, new_ids, offset, cache))  # 1
            yield token
            offset += new_ids.shape[1]
            new_ids = token[None]
    finally:  # the caller stops iterating when the answer ends
        for layer in cache:
            layer.release()
    # [/task 2.1.4]


def next_token_logits(
    model: Any, inputs: mx.array, offset: int | Sequence[int], cache: Any
) -> mx.array:
    """A model's logits after the last of the new tokens: ids B×L -> B×V.

    A model that has `next_token_logits` does not compute the logits of the other tokens.
    """
    if hasattr(model, "next_token_logits"):
        return model.next_token_logits(inputs, offset, cache)
    return model(inputs, offset, cache)[:, -1]


def speculative_generate(
    draft_model: Any,
    model: Any,
    draft_tokenizer: Any,
    tokenizer: Any,
    prompt: str | Sequence[int],
    sampler: Sampler | None = None,
    num_drafts: int = 4,
    max_tokens: int | None = None,
) -> str:
    """Answers as `simple_generate_with_kv_cache` does, in fewer steps of the model.

    Greedy answers are the same; sampled answers have the same distribution. `speculative.py` has
    the loop and the reason.

    Args:
        draft_model: a smaller model with the same vocabulary, from Week 2 on.
        model, tokenizer, prompt, sampler, max_tokens: see `simple_generate_with_kv_cache`.
        draft_tokenizer: only compared with `tokenizer`.
        num_drafts: how many tokens the draft proposes for each step of the model.

    Raises:
        UserError: see `simple_generate`; `num_drafts` below 1; tokenizers that differ.
    """
    check_same_vocabulary(draft_tokenizer, tokenizer)
    decode = SpeculativeDecoding(draft_model, num_drafts)
    return "".join(
        response.text
        for response in stream_generate(decode, model, tokenizer, prompt, sampler, max_tokens)
    )
