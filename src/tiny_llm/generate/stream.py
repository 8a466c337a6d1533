"""From a prompt's text to token ids, and from a decoding loop's token ids to the answer's text.

A *decoding loop* is an endless iterator of token ids: it knows the model and the sampler. This file
knows the tokenizer, and when an answer stops.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import mlx.core as mx

from .. import kernels
from ..errors import UserError, check_int, check_token_ids
from ..models.tokenizer.detokenizer import with_detokenizer
from ..sampler import Sampler, make_sampler

# (model, prompt ids, sampler) -> token ids, without end: numbers, or arrays of one
DecodingLoop = Callable[[Any, Sequence[int], Sampler], Iterator[int | mx.array]]


@dataclass(frozen=True)
class GenerationResponse:
    """One generated token, the text it completes, and the state of the generation so far.

    Attributes:
        text: what this token adds to the answer; often empty within a multi-byte character.
        token: its id.
        finish_reason: None until the last token, then "stop" (an end token) or "length".
        prompt_tokens: length of the prompt.
        prompt_tps: prompt tokens per second, up to the first new token.
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


def stream_generate(
    decode: DecodingLoop,
    model: Any,
    tokenizer: Any,
    prompt: str | Sequence[int],
    sampler: Sampler | None = None,
    max_tokens: int | None = None,
) -> Iterator[GenerationResponse]:
    """Generates with any decoding loop, and yields each token as it comes.

    Args:
        decode: `decode_by_recomputing`, `decode_with_cache`, …
        model, tokenizer, prompt, sampler, max_tokens: see `simple_generate`, errors too.
    """
    tokenizer = with_detokenizer(tokenizer)
    prompt_ids = encode_prompt(tokenizer, prompt, getattr(model, "vocab_size", None))
    budget = resolve_max_tokens(len(prompt_ids), max_tokens, getattr(model, "max_seq_len", None))
    tokens = decode(model, prompt_ids, sampler or make_sampler(temp=0))
    return stream_text(read_tokens(tokens, budget), tokenizer, len(prompt_ids), budget)


def read_tokens(tokens: Iterator[int | mx.array], budget: int | None = None) -> Iterator[int]:
    """A decoding loop's tokens as numbers.

    On a GPU the step after a token is sent off before the token is read, so the GPU does not wait
    for Python in between. The step after an answer's last token is computed for nothing. On a CPU
    the two would share the cores, so there each step waits for the one before.

    Args:
        tokens: numbers, or arrays of one that are not computed yet.
        budget: how many to ask for at most; None if there is no bound.
    """
    waiting: mx.array | None = None
    for token in itertools.islice(tokens, budget):
        if not isinstance(token, mx.array) or kernels.computes_on_cpu():
            yield int(token)
            continue
        mx.async_eval(token)
        if waiting is not None:
            yield int(waiting)
        waiting = token
    if waiting is not None:
        yield int(waiting)


def encode_prompt(
    tokenizer: Any, prompt: str | Sequence[int], vocab_size: int | None = None
) -> list[int]:
    """A prompt's token ids.

    Args:
        tokenizer: for a text.
        prompt: text, or token ids.
        vocab_size: V; None if the model does not tell it, and the ids are not checked.

    Raises:
        UserError: the prompt is empty, or has an id that the model does not have.
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
    """How many tokens may follow the prompt; None if there is no bound.

    Args:
        prompt_tokens: length of the prompt.
        max_tokens: what the caller allows, or None.
        max_seq_len: the model's context length, or None if it has no bound.

    Raises:
        UserError: the prompt leaves no room in the context; `max_tokens` is not a whole number ≥ 1.
    """
    if max_tokens is not None:
        check_int("max_tokens", max_tokens, 1)
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
        budget: the most tokens that the answer may have, or None.
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
