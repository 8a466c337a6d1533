"""Continuous batching: many prompts through one model, each in a slot that is reused at once.

One step of the loop computes at most one chunk of one waiting prompt (prefill) and one token for
every active request (decode). So a long prompt delays the others by one chunk only, and a
request that finishes leaves its slot to the next one at once.

On a GPU a step sends the next tokens' graph off before it reads its own tokens, so the GPU does not
wait for Python: see `BatchGeneration._decode`.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from . import kernels
from .errors import UserError, check_int
from .generate import encode_prompt, next_token_logits
from .kv_cache import BatchingKvCache, TinyKvCache
from .models.tokenizer.detokenizer import with_detokenizer
from .sampler import DistributionSampler, Sampler, log_softmax, make_sampler, sample


class Request:
    """One prompt on its way to an answer.

    Args:
        index: its place among the prompts.
        model: from Week 2 on.
        tokenizer: as `mlx_lm.load` returns it.
        prompt_ids: the prompt's tokens, at least one.
        prefill_step: how many of them a chunk has.
        sampler: greedy if None. A seeded one starts again for this request, so that its answer does
            not depend on the others'.
        max_tokens: ends the answer after this many tokens, the end token included; None does not.
        ignore_eos: go on after an end token, for measurements.
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
        self.offset = 0  # tokens in the cache
        # Sampled, not yet in the cache; an array of one while it is still being computed.
        self.next_token: int | mx.array | None = None
        self.num_tokens = 0  # of the answer
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
        """Whether the whole prompt is in the cache."""
        return self.offset >= len(self.prompt_ids)

    @property
    def text(self) -> str:
        """The answer so far."""
        return self._detokenizer.text

    @property
    def is_last_step(self) -> bool:
        """Whether the answer ends with its next token, whatever that is."""
        return self.num_tokens + 1 == self._max_tokens

    def try_prefill(self) -> None:
        """Computes the next chunk of the prompt; after the last one, samples the first token."""
        if self.is_prefilled:
            return
        # [task 2.7.5]
        chunk = self.prompt_ids[self.offset : self.offset + self._prefill_step]
        logits = next_token_logits(self._model, mx.array([chunk]), self.offset, self.cache)  # 1×V
        self.offset += len(chunk)
        # Without this, the graph of all chunks would be held until the first token is needed.
        mx.eval([layer.state for layer in self.cache])
        if self.is_prefilled:
            self.add_token(int(sample(self.sampler, logits)[0]))
        # [/task 2.7.5]

    def add_token(self, token: int) -> None:
        """Takes the next token of the answer; an end token ends it."""
        self.next_token = token
        self.num_tokens += 1
        if token in self._eos_token_ids:
            self.finish()
            return
        self._detokenizer.add_token(token)
        if self.num_tokens == self._max_tokens:
            self.finish()

    def finish(self) -> None:
        """Ends the answer, with what was held back as an unfinished character."""
        self._detokenizer.finalize()
        self.is_done = True

    def release(self) -> None:
        """Gives up the cache, if it still has one."""
        for layer in self.cache:
            layer.release()
        self.cache = []


# The requests of a decode step, and their next tokens: an array that need not be computed yet.
DecodeStep = tuple[list[Request], mx.array]


class BatchGeneration:
    """A batch while it runs: the waiting prompts, the one being prefilled, the slots, the answers.

    Call `step` until `is_done`. Between steps all attributes may be read.

    Args:
        model: from Week 2 on.
        tokenizer: as `mlx_lm.load` returns it.
        prompts: texts, encoded as they stand, or token ids.
        max_seq_len: tokens a request may have, prompt and answer together.
        batch_size: how many slots there are.
        prefill_step: tokens a chunk of a prompt has.
        sampler: greedy if None. A seeded one starts again for every request; any other is called
            for all rows of a step together.
        max_tokens: ends an answer after this many tokens; one number for all, or one for each
            prompt.
        ignore_eos: go on after an end token, for measurements.

    Attributes:
        requests: those that were admitted so far, by their prompts' index.

    Raises:
        UserError: a number is below 1, `prompts` is a text and not a list, or there is not one
            `max_tokens` for each prompt.
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
            raise UserError("batch_generate: prompts is one text; give a list of them.")
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
        self._in_flight: DecodeStep | None = (
            None  # a step that was sent off before it was asked for
        )
        self._caches = [
            BatchingKvCache(batch_size, self.max_seq_len) for _ in range(model.num_hidden_layers)
        ]

    @property
    def is_done(self) -> bool:
        """Whether every prompt has its answer."""
        return not self.waiting and self.prefilling is None and not any(self.slots)

    def step(self) -> None:
        """One chunk of prefill, if a prompt waits, and one token for every active request."""
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
        """Gives up all caches, of a run that is stopped before its end."""
        if self.prefilling is not None:
            self.prefilling.release()
        for cache in self._caches:
            cache.release()

    def _admit(self, index: int, prompt: str | Sequence[int]) -> Request | None:
        """The request of a prompt; None if it cannot be run, and its answer says why."""
        try:
            prompt_ids = encode_prompt(self._tokenizer, prompt, self._vocab_size)
        except UserError as error:
            self.outputs[index] = f"[{error}]"
            return None
        room = self.max_seq_len - len(prompt_ids)
        if room < 1:
            self.outputs[index] = (
                f"[the prompt has {len(prompt_ids)} tokens; with its answer it may have "
                f"{self.max_seq_len}.]"
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
            room if limit is None else min(limit, room),
            self._ignore_eos,
        )
        return self.requests[index]

    def _place_prefilled(self) -> None:
        """Moves a prefilled request to an idle slot, if there is one."""
        request = self.prefilling
        if request is None or not request.is_prefilled:
            return
        # [task 2.7.4 place]
        if request.is_done:  # its first token was an end token, or the last that it may have
            request.release()
            self.outputs[request.index] = request.text
            self.prefilling = None
        elif None in self.slots:
            slot = self.slots.index(None)
            for cache, layer in zip(self._caches, request.cache, strict=True):
                cache.add_request(layer, slot)
            request.cache = []  # its tokens are the slot's now
            self.slots[slot] = request
            self.prefilling = None
        # [/task 2.7.4 place]

    def _decode(self) -> None:
        """One token for every active request.

        On a GPU the step after this one is sent off before this one's tokens are read: their arrays
        are its input. A request whose answer ends here is then computed once more for nothing, and
        one that has just got its slot waits for the step after. On a CPU the two steps would share
        the cores, so each waits for the one before.
        """
        requests, tokens = self._in_flight or self._compute_tokens()
        self._in_flight = None
        if not kernels.computes_on_cpu() and not any(r.is_last_step for r in self.slots if r):
            mx.async_eval(tokens)  # by itself: sent with the next step, it would come with that
            for request, token in zip(requests, tokens, strict=True):
                request.next_token = token
            self._in_flight = self._compute_tokens()
            mx.async_eval(self._in_flight[1])
        self._add_tokens(requests, tokens.tolist())  # type: ignore[arg-type]

    def _compute_tokens(self) -> DecodeStep:
        """The token after every active request's next one, which goes into the cache.

        The rows of idle slots are computed and ignored.
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
        """Gives each request its next token. One that is done leaves its slot."""
        # [task 2.7.4 add]
        for request, token in zip(requests, tokens, strict=True):
            if request.is_done:  # it ended while this token was on its way
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
        """The next token of each request, given their logits: one row a request."""
        sampler = self._sampler
        if not (isinstance(sampler, DistributionSampler) and sampler.is_seeded):
            return sample(sampler, logits)
        # Filters do not mix rows, so they run once for all; each request draws for itself.
        shaped = sampler.logits(log_softmax(logits))
        draws = []
        for row, request in enumerate(requests):
            assert isinstance(request.sampler, DistributionSampler)
            draws.append(request.sampler.draw(shaped[row : row + 1]))
        return mx.concatenate(draws)


def _per_prompt_max_tokens(
    max_tokens: Sequence[int] | int | None, num_prompts: int
) -> Sequence[int | None]:
    """`max_tokens` for each prompt."""
    given = max_tokens if isinstance(max_tokens, Sequence) else [max_tokens] * num_prompts
    if len(given) != num_prompts:
        raise UserError(
            f"batch_generate: {len(given)} max_tokens were given for {num_prompts} prompts."
        )
    for limit in given:
        if limit is not None:
            check_int("batch_generate: max_tokens", limit, 1)
    return given


def batch_generate(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str | Sequence[int]],
    max_seq_len: int = 512,
    batch_size: int = 5,
    prefill_step: int = 128,
    sampler: Sampler | None = None,
) -> list[tuple[int, str]]:
    """Answers many prompts through continuous batching. Arguments: see `BatchGeneration`.

    Returns:
        (index, answer) for every prompt, in the prompts' order. A prompt that is empty or longer
        than `max_seq_len` gets an answer in brackets that says so; the others go on.
    """
    batch = BatchGeneration(
        model, tokenizer, prompts, max_seq_len, batch_size, prefill_step, sampler
    )
    try:
        while not batch.is_done:
            batch.step()
    finally:  # pages that are not returned would be missing from the model's pool
        batch.release()
    return sorted(batch.outputs.items())
