"""Continuous batching with chunked prefill over a fixed number of slots.

Written twice on purpose: the engine (`engine/core.py`) schedules by tokens and pages, not slots.

A step computes at most one chunk of one pending prompt (prefill) and one token for every active
request (decode). A long prompt delays other requests by only one chunk per step, and a finished
request's slot is reused immediately.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from . import kernels
from .errors import UserError, check_int
from .generate import next_token_logits, tokenize_prompt
from .kv_cache import BatchingKvCache, TinyKvCache
from .models.tokenizer.tokenizer import with_detokenizer
from .sampler import DistributionSampler, Sampler, make_sampler, sample
from .sampling_ops import log_softmax


class Request:
    """State of one prompt's generation.

    Args:
        index: index of the prompt in the list of prompts.
        prompt_ids: prompt token ids, at least one.
        max_tokens: maximum number of output tokens, including the end token; None for no limit.
        model, tokenizer, prefill_step, sampler, ignore_eos: see `BatchGeneration`.
    """

    def __init__(
        self,
        index: int,
        model: Any,
        tokenizer: Any,
        prompt_ids: list[int],
        prefill_step: int,
        sampler: Sampler | None = None,
        max_tokens: int | None = None,
        ignore_eos: bool = False,
    ):
        self.index = index
        self.prompt_ids = prompt_ids
        self.cache: list[TinyKvCache] = model.create_kv_cache()
        self.offset = 0  # number of tokens in the cache
        # Sampled, but not yet in the cache; an unevaluated array while its step is in flight.
        self.next_token: int | mx.array | None = None
        self.num_tokens = 0  # output tokens
        self.is_done = False
        self._model = model
        self._prefill_step = prefill_step
        self.sampler = sampler or make_sampler(temp=0)
        if isinstance(self.sampler, DistributionSampler) and self.sampler.is_seeded:
            self.sampler = self.sampler.reseeded()
        self._max_tokens = max_tokens
        self._eos_token_ids = frozenset() if ignore_eos else tokenizer.eos_token_ids
        self._detokenizer = tokenizer.detokenizer

    @property
    def is_prefilled(self) -> bool:
        """Whether all prompt tokens are in the cache."""
        return self.offset >= len(self.prompt_ids)

    @property
    def text(self) -> str:
        """Output text so far."""
        return self._detokenizer.text

    @property
    def is_last_step(self) -> bool:
        """Whether the next token reaches `max_tokens`."""
        return self.num_tokens + 1 == self._max_tokens

    def try_prefill(self) -> None:
        """Prefills the next chunk; after the last, samples the first output token."""
        if self.is_prefilled:
            return
        # [task 2.7.5]
        chunk = self.prompt_ids[self.offset : self.offset + self._prefill_step]
        logits = next_token_logits(self._model, mx.array([chunk]), self.offset, self.cache)  # 1×V
        self.offset += len(chunk)
        # Without this evaluation, all chunks' graphs stay in memory until the first token is read.
        mx.eval([layer.state for layer in self.cache])
        if self.is_prefilled:
            self.add_token(int(sample(self.sampler, logits)[0]))
        # [/task 2.7.5]

    def add_token(self, token: int) -> None:
        """Appends an output token; finishes at an end token or `max_tokens`."""
        self.next_token = token
        self.num_tokens += 1
        if token in self._eos_token_ids:
            self.finish()
            return
        self._detokenizer.add_token(token)
        if self.num_tokens == self._max_tokens:
            self.finish()

    def finish(self) -> None:
        """Marks the request as done and flushes the detokenizer."""
        self._detokenizer.finalize()
        self.is_done = True

    def release(self) -> None:
        """Releases the request's cache, if any."""
        for layer in self.cache:
            layer.release()
        self.cache = []


# The requests in a decode step, and their next tokens as a lazy array.
DecodeStep = tuple[list[Request], mx.array]


class BatchGeneration:
    """A running batch: pending prompts, the request in prefill, slots, outputs.

    Call `step` until `is_done`. Attributes may be read between steps.

    Args:
        model: model of Week 2 or later.
        tokenizer: tokenizer from `mlx_lm.load`.
        prompts: texts, encoded without a chat template, or token ids.
        max_seq_len: maximum tokens per request, prompt and output combined.
        batch_size: number of slots.
        prefill_step: tokens per prefill chunk.
        sampler: greedy if None. A seeded sampler restarts for every request, so that a request's
            output does not depend on others; any other sampler is called once per step for all
            rows.
        max_tokens: maximum number of output tokens: one limit for all prompts, or one per prompt.
        ignore_eos: continue after an end token, for benchmarks.

    Attributes:
        requests: admitted requests by prompt index.

    Raises:
        UserError: a numeric argument is below 1, `prompts` is a string instead of a list, or
            `max_tokens` is a list whose length is not the number of prompts.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        prompts: Sequence[str | Sequence[int]],
        max_seq_len: int = 512,
        batch_size: int = 5,
        prefill_step: int = 128,
        sampler: Sampler | None = None,
        max_tokens: Sequence[int] | int | None = None,
        ignore_eos: bool = False,
    ):
        if isinstance(prompts, str):
            raise UserError("batch_generate: prompts must be a list, got a single string.")
        for name, value in (
            ("max_seq_len", max_seq_len),
            ("batch_size", batch_size),
            ("prefill_step", prefill_step),
        ):
            check_int(f"batch_generate: {name}", value, 1)
        self._model = model
        self._vocab_size = getattr(model, "vocab_size", None)
        self._tokenizer = with_detokenizer(tokenizer)
        self._sampler = sampler or make_sampler(temp=0)
        self._prefill_step = prefill_step
        self._max_tokens = _per_prompt_max_tokens(max_tokens, len(prompts))
        self._ignore_eos = ignore_eos
        self.max_seq_len = min(max_seq_len, getattr(model, "max_seq_len", max_seq_len))
        self.waiting: deque[tuple[int, str | Sequence[int]]] = deque(enumerate(prompts))
        self.prefilling: Request | None = None
        self.slots: list[Request | None] = [None] * batch_size
        self.outputs: dict[int, str] = {}
        self.requests: dict[int, Request] = {}
        self._in_flight: DecodeStep | None = None  # decode step dispatched by the last `step` call
        self._caches = [
            BatchingKvCache(batch_size, self.max_seq_len) for _ in range(model.num_hidden_layers)
        ]

    @property
    def is_done(self) -> bool:
        """Whether all prompts are finished."""
        return not self.waiting and self.prefilling is None and not any(self.slots)

    def step(self) -> None:
        """Runs a prefill chunk, if any is pending; decodes a token per request."""
        # [task 2.7.4 step]
        if self.prefilling is None and self.waiting:
            self.prefilling = self._admit(*self.waiting.popleft())
        if self.prefilling is not None:
            self.prefilling.try_prefill()
            self._place_prefilled()
        if any(self.slots):
            self._decode()
        # [/task 2.7.4 step]

    def release(self) -> None:
        """Releases the caches of unfinished requests, after an error for example."""
        if self.prefilling is not None:
            self.prefilling.release()
        for cache in self._caches:
            cache.release()

    def _admit(self, index: int, prompt: str | Sequence[int]) -> Request | None:
        """Creates a request; for an invalid prompt, outputs the error instead."""
        try:
            prompt_ids = tokenize_prompt(self._tokenizer, prompt, self._vocab_size)
        except UserError as error:
            self.outputs[index] = f"[{error}]"
            return None
        num_left = self.max_seq_len - len(prompt_ids)
        if num_left < 1:
            self.outputs[index] = (
                f"[the prompt has {len(prompt_ids)} tokens, but max_seq_len is {self.max_seq_len}, "
                "including the output.]"
            )
            return None
        limit = self._max_tokens[index]
        self.requests[index] = Request(
            index,
            self._model,
            self._tokenizer,
            prompt_ids,
            self._prefill_step,
            self._sampler,
            num_left if limit is None else min(limit, num_left),
            self._ignore_eos,
        )
        return self.requests[index]

    def _place_prefilled(self) -> None:
        """Moves the request in prefill to an idle slot once its prompt is computed."""
        request = self.prefilling
        if request is None or not request.is_prefilled:
            return
        # [task 2.7.4 place]
        if request.is_done:  # the first token was EOS, or max_tokens was reached
            request.release()
            self.outputs[request.index] = request.text
            self.prefilling = None
        elif None in self.slots:
            slot = self.slots.index(None)
            for cache, layer in zip(self._caches, request.cache, strict=True):
                cache.add_request(layer, slot)
            request.cache = []  # the slot in `_caches` now owns the keys and values
            self.slots[slot] = request
            self.prefilling = None
        # [/task 2.7.4 place]

    def _decode(self) -> None:
        """Decodes one token for every active request.

        On a GPU, the next step is dispatched, with this step's lazy tokens as input, before those
        tokens are read, so that the GPU does not wait for Python. The cost: a finished request's
        next token is computed in vain, and a request newly moved to a slot joins one step later.
        On a CPU, overlapping steps would compete for cores, so steps run one at a time.
        """
        requests, tokens = self._in_flight or self._compute_tokens()
        self._in_flight = None
        if not kernels.computes_on_cpu() and not any(r.is_last_step for r in self.slots if r):
            # Dispatched before the next step, so that the tokens can be read before it ends.
            mx.async_eval(tokens)
            for request, token in zip(requests, tokens, strict=True):
                request.next_token = token
            self._in_flight = self._compute_tokens()
            mx.async_eval(self._in_flight[1])
        self._add_tokens(requests, tokens.tolist())  # type: ignore[arg-type]

    def _compute_tokens(self) -> DecodeStep:
        """Runs the model on each request's next token and samples the following one.

        Rows of idle slots are computed and ignored.
        """
        # [task 2.7.4 compute]
        ids = [[0 if request is None else request.next_token] for request in self.slots]
        offsets = [0 if request is None else request.offset for request in self.slots]
        logits = next_token_logits(self._model, mx.array(ids), offsets, self._caches)  # B×V
        live = [slot for slot, request in enumerate(self.slots) if request is not None]
        requests = [request for request in self.slots if request is not None]
        for request in requests:
            request.offset += 1
        tokens = self._sample(requests, logits[mx.array(live)])
        return requests, tokens
        # [/task 2.7.4 compute]

    def _add_tokens(self, requests: list[Request], tokens: list[int]) -> None:
        """Appends one token to each request and frees the slots of finished requests."""
        # [task 2.7.4 add]
        for request, token in zip(requests, tokens, strict=True):
            if request.is_done:  # ended while this token was in flight
                continue
            request.add_token(token)
            if request.is_done:
                self.outputs[request.index] = request.text
                slot = self.slots.index(request)
                self.slots[slot] = None
                for cache in self._caches:
                    cache.remove_request(slot)
        # [/task 2.7.4 add]

    def _sample(self, requests: list[Request], logits: mx.array) -> mx.array:
        """Samples one token per request from logits B×V."""
        sampler = self._sampler
        if not (isinstance(sampler, DistributionSampler) and sampler.is_seeded):
            return sample(sampler, logits)
        # The filters treat rows independently, so one call filters all rows. Each request draws
        # with its own random state.
        shaped = sampler.logits(log_softmax(logits))
        draws = []
        for row, request in enumerate(requests):
            assert isinstance(request.sampler, DistributionSampler)
            draws.append(request.sampler.draw(shaped[row : row + 1]))
        return mx.concatenate(draws)


def _per_prompt_max_tokens(
    max_tokens: Sequence[int] | int | None, num_prompts: int
) -> Sequence[int | None]:
    """Validates `max_tokens` and expands it to one limit per prompt."""
    limits = max_tokens if isinstance(max_tokens, Sequence) else [max_tokens] * num_prompts
    if len(limits) != num_prompts:
        raise UserError(
            f"batch_generate: expected {num_prompts} max_tokens, one per prompt, got {len(limits)}."
        )
    for limit in limits:
        if limit is not None:
            check_int("batch_generate: max_tokens", limit, 1)
    return limits


def batch_generate(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str | Sequence[int]],
    max_seq_len: int = 512,
    batch_size: int = 5,
    prefill_step: int = 128,
    sampler: Sampler | None = None,
) -> list[tuple[int, str]]:
    """Generates text with continuous batching; arguments: see `BatchGeneration`.

    Returns:
        (index, text) for every prompt, in order. For an invalid prompt, such as an empty or
        over-long one, the text is an error message in brackets; the batch does not fail.
    """
    batch = BatchGeneration(
        model, tokenizer, prompts, max_seq_len, batch_size, prefill_step, sampler
    )
    try:
        while not batch.is_done:
            batch.step()
    finally:  # otherwise an exception would leak pages from the model's pool
        batch.release()
    return sorted(batch.outputs.items())
