"""`LLM`: the engine's interface for Python programs.

    llm = LLM("demo")
    for output in llm.generate(["RoPE is", "Paged attention is"], SamplingParams(max_tokens=20)):
        print(output.text)

An `LLM` is driven by one thread.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal

from ..errors import UserError, check_int
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

Params = SamplingParams | Sequence[SamplingParams] | None  # for all prompts, or one for each

DEFAULT_KV_CACHE_BYTES = 2**29
DEFAULT_NUM_DRAFTS = 4  # of a draft model


class LLM:
    """A model that serves many requests at once, within a budget of memory.

    A request's tokens depend only on its prompt, its parameters and the model. Other requests and
    the arguments here change nothing, except `seed`, which counts for requests without their own.
    Names and meaning of the arguments are vLLM's where vLLM has them.

    Args:
        model: a short name, a hub id, a folder, or what `load_weights` or `load` returned.
        kv_cache_bytes: memory for keys and values at most, the draft model's included. It is taken
            when pages are first needed, in steps, and kept; `reserve` takes all of it at once.
            2e9 is as good as 2_000_000_000.
        block_size: tokens in a page. Requests share full pages from the first token on, so smaller
            pages share more; they cost a longer block table.
        max_num_batched_tokens: tokens that a step computes at most, guesses included. A larger
            number serves prompts faster, and lets answers wait longer meanwhile.
        max_num_seqs: requests that run at the same time at most.
        enable_prefix_caching: whether requests whose tokens begin alike share pages, and pages are
            kept for later requests while there is room.
        draft_model: a smaller model that guesses tokens, given as `model` is. It must have the same
            vocabulary. It changes how many steps an answer takes, and none of its tokens.
        num_drafts: how many guesses a step verifies for each request at most: 4 of a draft model if
            it is not given, 7 of the text.
        speculative: "ngram" guesses what followed the same tokens earlier in the prompt or in the
            answer. It needs no second model, and changes no token either.
        attention_backend: "paged" attends by a kernel that reads the pages where they are; "flash"
            and "reference" gather a sequence's pages first, for comparing: by the kernel of Week 2,
            with the same bits, or in plain MLX. They are slower.
        load_format: "auto" reads the weights of models that are given by name; "dummy" draws random
            ones in the shapes and formats of their configs, for measuring.
        tensor_parallel_size: on how many processes of this machine the model is computed, each of
            which has a part of its weights, keys and values. The model must be given by name. If
            one of the processes is lost, this one ends with a sentence.
        max_queue: requests beyond `max_num_seqs` that may wait; one more is refused
            (`QueueFullError`). None for any number.
        seed: for requests that have none; None draws one.
        listener: is called with every event (`events.py`); a `Recorder`, for example.

    Attributes:
        core: the `EngineCore` that does the work.
        tokenizer, scheduler, runner, seed, vocab_size: the core's.

    Raises:
        UserError: the model cannot be loaded, arguments contradict each other, or the memory does
            not hold a page.
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
        how = (block_size, load_format, attention_backend)
        models = load_models(model, draft_model, tensor_parallel_size, *how)
        config = SchedulerConfig(
            num_pages=num_kv_pages(kv_cache_bytes, block_size, models.all),
            page_size=block_size,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            max_seq_len=min(one.max_seq_len for one in models.all),
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

    # ---------------------------------------------------------------- everything at once

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
        """Answers prompts.

        Args:
            prompts: one or several. Each is a text (encoded as it stands), token ids (a list or an
                array), or the messages of a chat (`{"role": …, "content": …}`). A message's content
                is a text or text parts; an assistant's may have `tool_calls` and
                `reasoning_content`.
            sampling_params: for all prompts, or one for each; `SamplingParams()` if None.
            enable_thinking: passed to the chat template. Whatever the prompt is, an answer with
                `structured_outputs` may then begin with thoughts.
            tools: what the model may call, each as `{"type": "function", "function": {"name": …,
                "description": …, "parameters": a JSON schema}}`; the chat template tells the model.
            chat_template_kwargs: more variables of the chat template.
            show_progress: whether to show a progress bar on standard error, if that is a terminal.

        Returns:
            One output for each prompt, in their order. The output of a prompt that was refused has
            finish_reason "error" and says why in `error`; the other prompts are answered.

        Raises:
            UserError: something is not a prompt, or there are not as many `sampling_params` as
                prompts.
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
        """Answers prompts as `generate` does, and yields their tokens as they are computed.

        Arguments and errors are those of `generate`. Tokens of different prompts come in any order;
        the `request_output` of a prompt is always the same object. The requests are added when the
        iteration begins, and aborted if it ends early.
        """
        chat = ChatOptions(enable_thinking, tools, chat_template_kwargs)
        return self._run(_with_params(prompts, sampling_params), chat, [])

    def _add_or_refuse(
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
        """Adds requests, puts their outputs into `outputs`, and steps until all are finished.

        Aborts those that are not finished if an exception is raised or the iteration ends early.
        """
        sink: deque[StreamOutput] = deque()
        try:
            for prompt, params in prompts_and_params:
                outputs.append(self._add_or_refuse(prompt, params, chat, sink))
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

    # ---------------------------------------------------------------- step by step

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
        """Puts a request into the queue; `step` serves it.

        Args:
            prompt, enable_thinking, tools, chat_template_kwargs: see `generate`.
            sampling_params: `SamplingParams()` if None.
            request_id: unique among requests that are not finished; a number if None.
            timeout: seconds from now after which the answer ends as it is, in the queue too, with
                finish_reason "timeout"; None for never.

        Returns:
            The request's id.

        Raises:
            UserError: an empty prompt, a token that the model does not have, more tokens than the
                model's context or the declared memory can hold, or an id that is taken;
                `QueueFullError` if the queue is full.
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
        """Compiles what a request asks for in `structured_outputs`, so that `add_request` is quick.

        Unlike all else here, this may be called by any thread. No effect without a form.

        Raises:
            UserError: the grammar is refused, or `llguidance` is not installed.
        """
        self.core.compile_grammar(prompt_token_ids, sampling_params, enable_thinking)

    def abort(self, request_id: str) -> bool:
        """Ends a request, whatever its state, and frees its memory at once.

        The next `step` returns its last news, with finish_reason "abort".

        Returns:
            False if there is no such request, or it is finished.
        """
        return self.core.abort(request_id)

    def step(self) -> list[StreamOutput]:
        """Computes one step and returns what it added to the requests of `add_request`.

        If the model raises an exception, the requests of the step end with its message in `error`,
        and the others go on.
        """
        if not self._outputs:
            self.core.step()
        news = list(self._outputs)
        self._outputs.clear()
        return news

    def precompute(self, token_ids: Sequence[int]) -> bool:
        """Computes one page of a prompt that is likely to come, in one step.

        For times when there is nothing else to do: it has no effect while there are requests. The
        page goes to the prefix cache, as if a request had begun like this, and no answer changes.

        Args:
            token_ids: what the prompt will begin with. Only its full pages count.

        Returns:
            Whether there is more to compute; call it again then.
        """
        return self.core.precompute(token_ids)

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether `step` has something to compute or to return."""
        return self.scheduler.has_requests or bool(self._outputs)

    @property
    def step_seconds(self) -> float:
        """Time spent in steps; `runner.seconds` of it were not bookkeeping."""
        return self.core.step_seconds

    def reserve(self) -> None:
        """Takes all of `kv_cache_bytes` now: no step then spends time on it, or fails to get it."""
        self.runner.target.reserve()
        if self.runner.draft is not None:
            self.runner.draft.model.reserve()

    def release_scratch(self) -> None:
        """Has all ranks give back what steps used beside weights and pages: the next takes it anew.

        For times when there is nothing to do. A model of one process keeps it for the next step.
        """
        self.runner.target.release_scratch()

    def on_worker_lost(self, callback: Callable[[str], None]) -> None:
        """Has a function called with a sentence if a rank is lost, before this process ends.

        It is called in another thread. A model of one process loses none.
        """
        self.runner.target.on_worker_lost(callback)

    def describe(self) -> dict[str, Any]:
        """The engine's configuration, for the head of a recording, as JSON has it."""
        return asdict(self.scheduler.config)


@contextmanager
def _progress_bar(total: int, is_wanted: bool) -> Iterator[Callable[[int], None]]:
    """A function that moves a bar on by so much; it does nothing where there is no terminal."""
    if not (is_wanted and is_terminal()):
        yield lambda number: None
        return
    # Imported here, because this takes time and memory.
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("generating", total=total)
        yield lambda number: progress.advance(task, number)


def _with_params(prompts: Prompts, given: Params) -> list[tuple[Prompt, SamplingParams]]:
    """Each prompt with its sampling parameters."""
    listed = normalize_prompts(prompts)
    if given is None or not isinstance(given, Sequence):
        given = [given or SamplingParams()] * len(listed)
    if len(given) != len(listed):
        raise UserError(f"{len(given)} sampling_params were given for {len(listed)} prompts.")
    return list(zip(listed, map(_check_params, given), strict=True))


def _check_params(params: Any) -> SamplingParams:
    """The same; a dictionary of parameters is a likely mistake."""
    if not isinstance(params, SamplingParams):
        raise UserError(f"sampling_params is {params!r}; it must be a SamplingParams.")
    return params
