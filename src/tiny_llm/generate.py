"""Generation: from a prompt to text, one token at a time.

Two halves meet here. A *decoding loop* is an endless iterator of token ids: it knows the model
and the sampler. `stream_text` knows the tokenizer: when to stop, and which text the tokens are.
Each week brings a faster decoding loop; the other half stays.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx

from .detokenizer import with_detokenizer
from .errors import UserError
from .sampler import Sampler, choose, make_sampler
from .speculative import SpeculativeDecoding, check_same_vocabulary

Logits = Callable[[mx.array], mx.array]
DecodingLoop = Callable[[Any, Sequence[int], Sampler], Iterator[int]]

PREFILL_STEP = 1024  # tokens of a prompt that are computed at once


@dataclass(frozen=True)
class GenerationResponse:
    """One generated token, the text it completes, and the state of the generation so far.

    Attributes:
        text: what this token adds to the answer; often empty within a multi-byte character.
        token: its id.
        finish_reason: None while going on, then "stop" (an end token) or "length".
        prompt_tokens: length of the prompt.
        prompt_tps: prompt tokens per second, until the first new token was there.
        generation_tokens: new tokens so far, the end token included.
        generation_tps: new tokens per second since the first one.
        peak_memory: gigabytes (10⁹ bytes), as MLX counts them.
    """

    text: str
    token: int
    finish_reason: Literal["stop", "length"] | None
    prompt_tokens: int
    prompt_tps: float
    generation_tokens: int
    generation_tps: float
    peak_memory: float


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

    The first step computes the prompt (prefill), and every later one the prompt and all new
    tokens again: N tokens cost O(N²) runs of the layers.

    Yields:
        Token ids, without end.
    """
    # [task 1.6.1 decode]
    ids = list(prompt_ids)
    while True:
        logits = model(mx.array([ids]))[:, -1, :]  # 1×V, after the last token
        token = int(choose(sampler, logits)[0])
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


def decode_with_cache(model: Any, prompt_ids: Sequence[int], sampler: Sampler) -> Iterator[int]:
    """The prompt once (prefill), then one new token a step: N tokens cost O(N) runs of the layers.

    Yields:
        Token ids, without end.
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
        new_ids = list(prompt_ids[offset:])
        while True:
            logits = next_token_logits(model, mx.array([new_ids]), offset, cache)  # 1×V
            token = int(choose(sampler, logits)[0])
            yield token
            offset += len(new_ids)
            new_ids = [token]
    finally:  # whoever iterates stops when the answer ends
        for layer in cache:
            layer.release()
    # [/task 2.1.4]


def next_token_logits(
    model: Any, inputs: mx.array, offset: int | Sequence[int], cache: Any
) -> mx.array:
    """What a model says after the last of the new tokens: ids B×L -> B×V.

    A model that can leave out the other tokens' logits does.
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

    Greedy answers are the same; sampled ones have the same distribution. `speculative.py` has the
    loop and says why.

    Args:
        draft_model: a smaller model with the same vocabulary, from Week 2 on.
        model, tokenizer, prompt, sampler, max_tokens: see `simple_generate_with_kv_cache`.
        draft_tokenizer: compared with the other, and not used otherwise.
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


def stream_generate(
    decode: DecodingLoop,
    model: Any,
    tokenizer: Any,
    prompt: str | Sequence[int],
    sampler: Sampler | None = None,
    max_tokens: int | None = None,
) -> Iterator[GenerationResponse]:
    """Generates with any decoding loop, yielding each token as it comes.

    Args:
        decode: `decode_by_recomputing`, `decode_with_cache`, …
        model, tokenizer, prompt, sampler, max_tokens: see `simple_generate`, errors too.
    """
    tokenizer = with_detokenizer(tokenizer)
    prompt_ids = encode_prompt(tokenizer, prompt, getattr(model, "vocab_size", None))
    budget = token_budget(len(prompt_ids), max_tokens, getattr(model, "max_seq_len", None))
    tokens = decode(model, prompt_ids, sampler or make_sampler(temp=0))
    return stream_text(tokens, tokenizer, len(prompt_ids), budget)


def encode_prompt(
    tokenizer: Any, prompt: str | Sequence[int], vocab_size: int | None = None
) -> list[int]:
    """A prompt's token ids.

    Args:
        tokenizer: for a text.
        prompt: text, or token ids.
        vocab_size: how many ids the model knows; None if it does not say. An id beyond would be
            looked up in memory that is not the table's.

    Raises:
        UserError: there is none, or the model does not know one.
    """
    ids = tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
    if not ids:
        raise UserError("the prompt is empty; give at least one token.")
    unknown = [] if vocab_size is None else [i for i in ids if not 0 <= i < vocab_size]
    if unknown:
        raise UserError(
            f"the prompt has token id {unknown[0]}; the model has {vocab_size}, from 0 on."
        )
    return ids


def token_budget(prompt_tokens: int, max_tokens: int | None, max_seq_len: int | None) -> int | None:
    """How many tokens may follow the prompt: None if there is no bound.

    Args:
        prompt_tokens: length of the prompt.
        max_tokens: what the caller allows, or None.
        max_seq_len: the model's context length, or None if it has no bound.

    Raises:
        UserError: the prompt leaves no room in the context, or `max_tokens` is below 1.
    """
    if max_tokens is not None and max_tokens < 1:
        raise UserError(f"max-tokens is {max_tokens}; it must be at least 1.")
    if max_seq_len is None:
        return max_tokens
    room = max_seq_len - prompt_tokens
    if room < 1:
        raise UserError(
            f"the prompt has {prompt_tokens} tokens, and the model's context holds {max_seq_len} "
            f"with the answer; shorten the prompt to at most {max_seq_len - 1}."
        )
    return room if max_tokens is None else min(max_tokens, room)


def stream_text(
    tokens: Iterator[int], tokenizer: Any, prompt_tokens: int, budget: int | None
) -> Iterator[GenerationResponse]:
    """Turns a decoding loop's tokens into text, up to an end token or `budget` tokens.

    Args:
        tokens: an endless iterator of ids.
        tokenizer: its `detokenizer` assembles bytes into characters across tokens, and any of
            its `eos_token_ids` ends the answer.
        prompt_tokens: length of the prompt, for the statistics.
        budget: how many tokens may come, or None.
    """
    # [task 1.6.1 stream]
    detokenizer = tokenizer.detokenizer
    started = time.perf_counter()
    for count, token in enumerate(tokens, start=1):
        now = time.perf_counter()
        if count == 1:
            first_token_at = now
        finish_reason: Literal["stop", "length"] | None = None
        if token in tokenizer.eos_token_ids:
            finish_reason = "stop"
        else:
            detokenizer.add_token(token)
            if count == budget:
                finish_reason = "length"
        if finish_reason is not None:
            detokenizer.finalize()  # what was held back as an unfinished character
        yield GenerationResponse(
            text=detokenizer.last_segment,
            token=token,
            finish_reason=finish_reason,
            prompt_tokens=prompt_tokens,
            prompt_tps=prompt_tokens / (first_token_at - started),
            generation_tokens=count,
            generation_tps=(count - 1) / (now - first_token_at) if count > 1 else 0.0,
            peak_memory=mx.get_peak_memory() / 1e9,
        )
        if finish_reason is not None:
            return
    # [/task 1.6.1 stream]
