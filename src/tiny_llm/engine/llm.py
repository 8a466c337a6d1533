"""LLM: the engine's Python interface.

    llm = LLM("demo")
    for output in llm.generate(["RoPE is", "Paged attention is"], SamplingParams(max_tokens=20)):
        print(output.text)

Not thread-safe, except `compile_grammar`.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal

from ..errors import UserError, check_int, short_repr
from ..models.hub import is_terminal
from .core import EngineCore
from .factory import (
    Model,
    check_options,
    load_models,
    make_model_runner,
    make_proposers,
    num_kv_pages,
)
from .inputs.prompts import ChatOptions, Prompt, Prompts, normalize_prompts
from .inputs.sampling_params import SamplingParams
from .inputs.validation import validate_bool, validate_seed
from .scheduling.config import SchedulerConfig
from .scheduling.events import Listener
from .scheduling.outputs import CompletionOutput, RequestMetrics, RequestOutput, StreamOutput
from .scheduling.scheduler import Scheduler

Params = (
    SamplingParams | Sequence[SamplingParams] | None
)  # shared by all prompts, or one per prompt

DEFAULT_KV_CACHE_BYTES = 2**29
DEFAULT_NUM_DRAFTS = 4  # with a draft model


class LLM:
    """Serves many requests concurrently within a fixed KV memory.

    A request's output depends only on its prompt, its parameters and the model. Neither other
    requests nor the other engine arguments affect it, except `seed`, the default seed. Argument
    names
    and semantics follow vLLM where it has an equivalent.

    Args:
        model: short name, hub id, folder, or the result of `load_weights` or `load`.
        kv_cache_bytes: upper bound on KV memory, the draft model's included. Allocated in
            increments on demand and kept; `reserve` allocates all of it. Floats such as 2e9 are
            accepted.
        block_size: tokens per page. Requests share full pages, so smaller pages share more, at the
            price of longer block tables.
        max_num_batched_tokens: upper bound on tokens per step, draft tokens included. Larger values
            increase prefill throughput and inter-token latency.
        max_num_seqs: upper bound on concurrently running requests.
        enable_prefix_caching: whether requests with a common prefix share pages, and pages are kept
            for later requests until evicted.
        draft_model: smaller model for speculative decoding, given like `model`, with the same
            vocabulary. Saves steps; does not change the output.
        num_drafts: upper bound on draft tokens per request and step; 4 by default with a draft
            model, 7 with "ngram".
        speculative: "ngram" drafts the continuation of an earlier occurrence of the last tokens in
            prompt or output. Requires no draft model; does not change the output.
        attention_backend: "paged" reads pages in place. "flash" (the Week 2 kernel, bitwise
            identical) and "reference" (plain MLX) gather them first; both are slower and meant for
            comparison.
        load_format: "auto" loads weights of models given by name; "dummy" draws random weights of
            the same shapes and formats, for benchmarks.
        tensor_parallel_size: number of processes on this machine, each with a shard of the weights
            and KV cache. The model must be given by name. If one of them dies, this process exits
            with a message.
        max_queue: queued requests allowed beyond `max_num_seqs`; further ones raise
            `QueueFullError`. None for no limit.
        seed: base seed for requests without their own; None for a random one.
        listener: callback for every event (`events.py`), for example a `Recorder`.

    Attributes:
        core: the `EngineCore`.
        tokenizer, scheduler, runner, seed, vocab_size: those of the core.

    Raises:
        UserError: the model cannot be loaded, the arguments conflict, or the KV memory is smaller
            than a page.
    """

    def __init__(
        self,
        model: Model,
        *,
        kv_cache_bytes: float = DEFAULT_KV_CACHE_BYTES,
        block_size: int = 32,
        max_num_batched_tokens: int = 256,
        max_num_seqs: int = 32,
        enable_prefix_caching: bool = True,
        draft_model: Model | None = None,
        num_drafts: int | None = None,
        speculative: Literal["ngram"] | None = None,
        attention_backend: str = "paged",
        load_format: str = "auto",
        tensor_parallel_size: int = 1,
        max_queue: int | None = None,
        seed: int | None = 0,
        listener: Listener | None = None,
    ):
        check_int("block_size", block_size, 1)
        validate_bool("enable_prefix_caching", enable_prefix_caching)
        proposers = make_proposers(speculative, draft_model, num_drafts)
        check_options(load_format, attention_backend, listener)
        self.seed = int.from_bytes(os.urandom(8), "big") if seed is None else validate_seed(seed)
        options = (block_size, load_format, attention_backend)
        models = load_models(model, draft_model, tensor_parallel_size, *options)
        config = SchedulerConfig(
            num_pages=num_kv_pages(kv_cache_bytes, block_size, models.all),
            page_size=block_size,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            max_seq_len=min(loaded.max_seq_len for loaded in models.all),
            num_drafts=0 if draft_model is None else num_drafts or DEFAULT_NUM_DRAFTS,
            enable_prefix_caching=enable_prefix_caching,
            max_queue=max_queue,
        )
        self.tokenizer = models.tokenizer
        self.runner = make_model_runner(models, config.num_pages)
        self.scheduler = Scheduler(config, listener)
        self.core = EngineCore(self.tokenizer, self.scheduler, self.runner, self.seed, proposers)
        self.vocab_size = self.core.vocab_size
        self._outputs: deque[StreamOutput] = deque()

    # ---------------------------------------------------------------- batch interface

    def generate(
        self,
        prompts: Prompts,
        sampling_params: Params = None,
        *,
        enable_thinking: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        show_progress: bool = True,
    ) -> list[RequestOutput]:
        """Generates completions for prompts and waits for all of them.

        Args:
            prompts: one or several. Each is a string (encoded verbatim), token ids (a list or an
                array), or chat messages (`{"role": …, "content": …}`). Message content is a string
                or text parts; assistant messages may have `tool_calls` and `reasoning_content`.
            sampling_params: shared by all prompts, or one per prompt; `SamplingParams()` if None.
            enable_thinking: passed to the chat template. Also allows reasoning before
                `structured_outputs`, for prompts of any form.
            tools: function tools for the chat template, each as `{"type": "function", "function":
                {"name": …, "description": …, "parameters": a JSON schema}}`.
            chat_template_kwargs: additional chat template variables.
            show_progress: whether to show a progress bar if standard error is a terminal.

        Returns:
            One output per prompt, in order. A rejected prompt's output has finish_reason "error"
            and a message in `error`; the other prompts are not affected.

        Raises:
            UserError: an argument is not a prompt, or the numbers of prompts and `sampling_params`
                differ.
        """
        outputs: list[RequestOutput] = []
        prompts_and_params = _with_params(prompts, sampling_params)
        chat = ChatOptions(enable_thinking, tools, chat_template_kwargs)
        with _progress_bar(len(prompts_and_params), show_progress) as advance:
            for output in self._run(prompts_and_params, chat, outputs):
                advance(output.request_output.finished)
        return outputs

    def stream(
        self,
        prompts: Prompts,
        sampling_params: Params = None,
        *,
        enable_thinking: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Iterator[StreamOutput]:
        """Like `generate`, but yields tokens as they are computed.

        Outputs of different prompts interleave; `request_output` is the same object for all outputs
        of a prompt. Requests are queued when the iteration starts and aborted if it ends early.
        """
        chat = ChatOptions(enable_thinking, tools, chat_template_kwargs)
        return self._run(_with_params(prompts, sampling_params), chat, [])

    def _add_or_reject(
        self, prompt: Prompt, params: SamplingParams, chat: ChatOptions, sink: deque[StreamOutput]
    ) -> RequestOutput:
        try:
            return self.core.add(prompt, params, None, chat, sink)
        except UserError as error:
            output = CompletionOutput(0, finish_reason="error")
            now = time.perf_counter()
            metrics = RequestMetrics(now, finished_time=now)
            request_id = self.core.new_id()
            request_output = RequestOutput(
                request_id, None, [], [output], metrics, error=str(error)
            )
            sink.append(StreamOutput(request_id, 0, "", (), "error", request_output))
            return request_output

    def _run(
        self,
        prompts_and_params: Sequence[tuple[Prompt, SamplingParams]],
        chat: ChatOptions,
        outputs: list[RequestOutput],
    ) -> Iterator[StreamOutput]:
        """Queues requests, appends their outputs to `outputs`, and steps until all are finished.

        Aborts unfinished requests if an exception is raised or the iteration ends early.
        """
        sink: deque[StreamOutput] = deque()
        try:
            for prompt, params in prompts_and_params:
                outputs.append(self._add_or_reject(prompt, params, chat, sink))
            while sink or not all(output.finished for output in outputs):
                if not sink:
                    self.core.step()
                while sink:
                    yield sink.popleft()
            if not self.scheduler.has_requests:
                self.release_scratch()
        finally:
            for output in outputs:
                if not output.finished:
                    self.abort(output.request_id)

    # ---------------------------------------------------------------- step interface

    def add_request(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        enable_thinking: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> str:
        """Queues a request, to be served by `step`.

        Args:
            prompt, enable_thinking, tools, chat_template_kwargs: see `generate`.
            sampling_params: `SamplingParams()` if None.
            request_id: unique among unfinished requests; generated if None.
            timeout: seconds until the request ends with finish_reason "timeout" and partial output,
                time in the queue included; None for no timeout.

        Returns:
            The request id.

        Raises:
            UserError: an empty prompt, an unknown token id, more tokens than fit in the model's
                context or the KV memory, or a duplicate id.
            QueueFullError: the queue is full.
        """
        params = _check_params(sampling_params or SamplingParams())
        chat = ChatOptions(enable_thinking, tools, chat_template_kwargs)
        request_output = self.core.add(prompt, params, request_id, chat, self._outputs, timeout)
        return request_output.request_id

    def compile_grammar(
        self,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        enable_thinking: bool = False,
    ) -> None:
        """Compiles and caches the grammar of `structured_outputs` ahead of `add_request`.

        Thread-safe, unlike the other methods. A no-op without `structured_outputs`.

        Raises:
            UserError: the grammar is rejected, or `llguidance` is not installed.
        """
        self.core.compile_grammars(prompt_token_ids, sampling_params, enable_thinking)

    def abort(self, request_id: str) -> bool:
        """Ends a request in any state and releases its pages.

        The next `step` returns its last output, with finish_reason "abort".

        Returns:
            False if the request is unknown or finished.
        """
        return self.core.abort(request_id)

    def step(self) -> list[StreamOutput]:
        """Computes one step and returns its outputs for requests of `add_request`.

        If the model raises an exception, the requests of the step end with its message in `error`;
        the others continue.
        """
        if not self._outputs:
            self.core.step()
        outputs = list(self._outputs)
        self._outputs.clear()
        return outputs

    def precompute(self, token_ids: Sequence[int]) -> bool:
        """Prefills one page of an expected prompt into the prefix cache, in one step.

        For idle time: a no-op while requests are unfinished. Does not affect any output.

        Args:
            token_ids: prefix of the expected prompt; only its full pages are computed.

        Returns:
            Whether pages remain to be computed by further calls.
        """
        return self.core.precompute(token_ids)

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether `step` has requests to compute or outputs to return."""
        return self.scheduler.has_requests or bool(self._outputs)

    @property
    def step_seconds(self) -> float:
        """Time spent in steps; all but `runner.seconds` is overhead."""
        return self.core.step_seconds

    def reserve(self) -> None:
        """Allocates all of `kv_cache_bytes` now, so that later steps cannot stall or fail."""
        self.runner.target.reserve()
        if self.runner.draft is not None:
            self.runner.draft.model.reserve()

    def release_scratch(self) -> None:
        """Frees scratch memory on all ranks; the next step reallocates it. For idle time.

        A no-op in a single process.
        """
        self.runner.target.release_scratch()

    def on_worker_lost(self, callback: Callable[[str], None]) -> None:
        """Registers a callback for a lost rank, called with a message before this process exits.

        The callback runs in another thread. A no-op in a single process.
        """
        self.runner.target.on_worker_lost(callback)

    def describe(self) -> dict[str, Any]:
        """Returns the scheduler's configuration as JSON-serializable data."""
        return asdict(self.scheduler.config)


@contextmanager
def _progress_bar(total: int, enabled: bool) -> Iterator[Callable[[int], None]]:
    """Yields a function that advances the bar; a no-op without a terminal."""
    if not (enabled and is_terminal()):
        yield lambda number: None
        return
    # A local import: rich takes time and memory.
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("generating", total=total)
        yield lambda number: progress.advance(task, number)


def _with_params(prompts: Prompts, params: Params) -> list[tuple[Prompt, SamplingParams]]:
    """Pairs each prompt with its sampling parameters."""
    prompt_list = normalize_prompts(prompts)
    if params is None or not isinstance(params, Sequence):
        params = [params or SamplingParams()] * len(prompt_list)
    if len(params) != len(prompt_list):
        raise UserError(f"{len(params)} sampling_params were given for {len(prompt_list)} prompts.")
    return list(zip(prompt_list, map(_check_params, params), strict=True))


def _check_params(params: Any) -> SamplingParams:
    """Returns `params`; rejects other types, such as a dictionary."""
    if not isinstance(params, SamplingParams):
        raise UserError(f"sampling_params must be a SamplingParams, got {short_repr(params)}.")
    return params
