"""Streaming generation: prompt encoding, detokenization, stop conditions.

Adds the tokenizer and stop conditions to a *decoding loop* (see `loops`).
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx

from .. import kernels
from ..errors import UserError, check_int, check_token_ids
from ..models.tokenizer.tokenizer import with_detokenizer
from ..sampler import Sampler, make_sampler

# (model, prompt ids, sampler) -> endless iterator of token ids, as ints or one-element arrays.
DecodingLoop = Callable[[Any, Sequence[int], Sampler], Iterator[int | mx.array]]


@dataclass(frozen=True)
class GenerationResponse:
    """One generated token, the text that it completes, and statistics so far.

    Attributes:
        text: text added by this token; empty if the token ends inside a multi-byte character.
        finish_reason: None until the last token, then "stop" (an end token) or "length".
        prompt_tps: prompt tokens/s until the first new token.
        generation_tokens: new tokens so far, including the end token.
        generation_tps: new tokens/s since the first new token.
        peak_memory: MLX's peak memory in gigabytes (10⁹ bytes).
    """

    text: str
    token: int
    finish_reason: Literal["stop", "length"] | None
    prompt_tokens: int
    prompt_tps: float
    generation_tokens: int
    generation_tps: float
    peak_memory: float


def stream_generate(
    decode: DecodingLoop,
    model: Any,
    tokenizer: Any,
    prompt: str | Sequence[int],
    sampler: Sampler | None = None,
    max_tokens: int | None = None,
) -> Iterator[GenerationResponse]:
    """Streams a decoding loop's text; for arguments, see `simple_generate`."""
    tokenizer = with_detokenizer(tokenizer)
    prompt_ids = tokenize_prompt(tokenizer, prompt, getattr(model, "vocab_size", None))
    budget = resolve_max_tokens(len(prompt_ids), max_tokens, getattr(model, "max_seq_len", None))
    tokens = decode(model, prompt_ids, sampler or make_sampler(temp=0))
    return stream_text(read_tokens(tokens, budget), tokenizer, len(prompt_ids), budget)


def read_tokens(tokens: Iterator[int | mx.array], budget: int | None = None) -> Iterator[int]:
    """Reads at most `budget` tokens of a decoding loop as ints.

    On a GPU, the next step is dispatched before a token is read, so that the GPU does not wait for
    Python, at the cost of a wasted step after an end token. On a CPU, overlapping steps would
    compete for cores, so they run one at a time.
    """
    pending: mx.array | None = None
    for token in itertools.islice(tokens, budget):
        if not isinstance(token, mx.array) or kernels.computes_on_cpu():
            yield int(token)
            continue
        mx.async_eval(token)
        if pending is not None:
            yield int(pending)
        pending = token
    if pending is not None:
        yield int(pending)


def tokenize_prompt(
    tokenizer: Any, prompt: str | Sequence[int], vocab_size: int | None = None
) -> list[int]:
    """Encodes a prompt and checks its token ids, if `vocab_size` is given.

    Raises:
        UserError: the prompt is empty, or a token id is out of range.
    """
    ids = tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
    if not ids:
        raise UserError("the prompt is empty; give at least one token.")
    if vocab_size is not None:
        check_token_ids("the prompt", ids, vocab_size)
    return ids


def resolve_max_tokens(
    prompt_tokens: int, max_tokens: int | None, max_seq_len: int | None
) -> int | None:
    """Returns the maximum number of new tokens; None for no limit.

    Raises:
        UserError: the prompt fills the context, or `max_tokens` is not a positive integer.
    """
    if max_tokens is not None:
        check_int("max_tokens", max_tokens, 1)
    if max_seq_len is None:
        return max_tokens
    num_left = max_seq_len - prompt_tokens
    if num_left < 1:
        raise UserError(
            f"the prompt has {prompt_tokens} tokens, but the model's context length is "
            f"{max_seq_len} tokens, including the output; shorten the prompt to at most "
            f"{max_seq_len - 1} tokens."
        )
    return num_left if max_tokens is None else min(max_tokens, num_left)


def stream_text(
    tokens: Iterator[int], tokenizer: Any, prompt_tokens: int, budget: int | None
) -> Iterator[GenerationResponse]:
    """Detokenizes a decoding loop's tokens up to an end token or `budget` tokens.

    Args:
        tokens: endless iterator of token ids.
        tokenizer: provides `detokenizer`, which assembles characters from tokens' bytes, and
            `eos_token_ids`.
        prompt_tokens: length of the prompt, for the statistics.
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
            detokenizer.finalize()  # flushes an incomplete character
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
