"""Decoding loops of Weeks 1 and 2, and generation functions based on them.

A decoding loop is an endless iterator of token ids; it depends on the model and the sampler.
`stream` detokenizes its tokens and stops the loop.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import mlx.core as mx

from ..models.tokenizer.tokenizer import check_same_tokenizer
from ..sampler import Sampler, sample
from .speculative import SpeculativeDecoding
from .stream import stream_generate

Logits = Callable[[mx.array], mx.array]

PREFILL_STEP = 1024  # maximum prompt tokens per model call


def simple_generate(
    model: Logits,
    tokenizer: Any,
    prompt: str | Sequence[int],
    sampler: Sampler | None = None,
    max_tokens: int | None = None,
) -> str:
    """Generates text by running the model on the whole sequence for every token.

    Args:
        model: ids 1×L -> logits 1×L×V.
        tokenizer: tokenizer from `mlx_lm.load`.
        prompt: text, encoded without a chat template, or token ids.
        sampler: logprobs 1×V -> ids 1; greedy if None.
        max_tokens: maximum number of new tokens; None for no limit besides the context.

    Raises:
        UserError: the prompt is empty or fills the model's context, a token id is out of range, or
            `max_tokens` is below 1.
    """
    return _generate(decode_by_recomputing, model, tokenizer, prompt, sampler, max_tokens)


def decode_by_recomputing(
    model: Logits, prompt_ids: Sequence[int], sampler: Sampler
) -> Iterator[int]:
    """Decoding loop without a cache: the slowest, and the oracle for all others.

    Every step recomputes the prompt and all new tokens, so generating N tokens costs O(N²) token
    evaluations per layer.

    Yields:
        Token ids; the iterator never ends.
    """
    # [task 1.6.1 decode]
    ids = list(prompt_ids)
    while True:
        logits = model(mx.array([ids]))[:, -1, :]  # 1×V, for the last token
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
    """Generates text with a KV cache; see `simple_generate`.

    Args:
        model: (ids B×L, offset, cache) -> logits B×L×V, with `create_kv_cache` (Week 2 or later).
    """
    return _generate(decode_with_cache, model, tokenizer, prompt, sampler, max_tokens)


def decode_with_cache(
    model: Any, prompt_ids: Sequence[int], sampler: Sampler
) -> Iterator[mx.array]:
    """Decoding loop with a KV cache: computes the prompt, then a token per step.

    Generating N tokens costs O(N) token evaluations per layer.

    Yields:
        Token ids, as lazy one-element arrays; the iterator never ends. A caller may request the
        next token before evaluating the current one; MLX then evaluates both steps as one graph.
    """
    # [task 2.1.4]
    cache = model.create_kv_cache()
    offset = 0
    try:
        # Chunked prefill bounds activation memory by the chunk instead of the prompt.
        while len(prompt_ids) - offset > PREFILL_STEP:
            piece = mx.array([prompt_ids[offset : offset + PREFILL_STEP]])
            mx.eval(next_token_logits(model, piece, offset, cache))
            offset += PREFILL_STEP
        new_ids = mx.array([prompt_ids[offset:]])  # 1×L
        while True:
            token = sample(sampler, next_token_logits(model, new_ids, offset, cache))  # one id
            yield token
            offset += new_ids.shape[1]
            new_ids = token[None]
    finally:  # runs when the caller closes the iterator
        for layer in cache:
            layer.release()
    # [/task 2.1.4]


def next_token_logits(
    model: Any, inputs: mx.array, offset: int | Sequence[int], cache: Any
) -> mx.array:
    """Returns the logits at the last position: ids B×L -> B×V.

    Uses the model's `next_token_logits` if defined, which skips the other positions' logits.
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
    """Generates text with speculative decoding, in fewer target model calls.

    Greedy outputs are identical to `simple_generate_with_kv_cache`'s; sampled outputs have the same
    distribution. See `speculative.py`.

    Args:
        draft_model: smaller model of Week 2 or later with the same vocabulary.
        model, tokenizer, prompt, sampler, max_tokens: see `simple_generate_with_kv_cache`.
        num_drafts: draft tokens per target step.

    Raises:
        UserError: see `simple_generate`; `num_drafts` is below 1; the tokenizers differ in their
            vocabulary, encoding or end tokens.
    """
    check_same_tokenizer(draft_tokenizer, tokenizer, prompt)
    decode = SpeculativeDecoding(draft_model, num_drafts)
    return _generate(decode, model, tokenizer, prompt, sampler, max_tokens)


def _generate(*arguments: Any) -> str:
    """Concatenates the text that `stream_generate` yields."""
    return "".join(response.text for response in stream_generate(*arguments))
