"""LLM: the engine's Python interface.

    llm = LLM("demo")
    for output in llm.generate(["RoPE is", "Paged attention is"], SamplingParams(max_tokens=20)):
        print(output.text)

An `LLM` may be used from any thread, one at a time; only `compile_grammar` may run concurrently.
`step`, `abort` and `close` are in `core.py`.
"""

import inspect
import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from typing import Any, Concatenate, ParamSpec

from ..errors import UserError, short_repr
from ..models.hub import is_terminal
from ..models.memory import available_memory
from ..models.output_heads import SCORE_INSTRUCTION, SCORE_TEMPLATE
from .core import EngineCore
from .engine_args import EngineArgs
from .execution.exclusive_use import exclusive
from .execution.kv_memory import default_state_slots, plan_kv_memory
from .factory import (
    attach_lora_adapters,
    load_models,
    make_disk_cache,
    make_model_runner,
    make_scheduler,
    resolve_task,
)
from .inputs.options import check_names
from .inputs.prompts import ChatOptions, Prompt, Prompts, encode_prompt, is_chat, normalize_prompts
from .inputs.sampling_params import SamplingParams
from .scheduling.config import SchedulerConfig
from .scheduling.request import CompletionOutput, RequestMetrics, RequestOutput, StreamOutput
from .spec_decode.draft_tokens import NgramProposer

# Parameters of all prompts, or one per prompt; None for the defaults.
Params = SamplingParams | Sequence[SamplingParams] | None

log = logging.getLogger("tiny_llm.engine")

P = ParamSpec("P")
POOLING_PARAMS = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)


def _with_signature_of(
    arguments: Callable[P, EngineArgs],
) -> Callable[[Callable[[Any, EngineArgs], None]], Callable[Concatenate[Any, P], None]]:
    """Decorator: the method takes the arguments of `EngineArgs` instead of an instance."""

    def decorate(init: Callable[[Any, EngineArgs], None]) -> Callable[Concatenate[Any, P], None]:
        def wrapper(self: Any, *args: P.args, **kwargs: P.kwargs) -> None:
            check_names(kwargs, [each.name for each in fields(EngineArgs)])
            init(self, arguments(*args, **kwargs))

        wrapper.__signature__ = inspect.signature(EngineArgs.__init__)  # type: ignore[attr-defined]
        return wrapper

    return decorate


class LLM(EngineCore):
    """Serves many requests concurrently with a fixed KV memory budget.

    With a seed in its parameters, a request's output depends only on the model, its prompt and its
    parameters, not on other requests, batching, chunked prefill, cached prefixes, preemption or
    draft tokens. Outputs are bit-identical for a given version, instruction set (which selects the
    kernels) and `tensor_parallel_size`. The arguments are the fields of `EngineArgs`.

    Raises:
        UserError: the model cannot be loaded, an argument is invalid, or the KV memory cannot hold
            one page, and two state slots if the model has recurrent state.
    """

    @exclusive
    @_with_signature_of(EngineArgs)
    def __init__(self, args: EngineArgs):
        args = replace(args, task=resolve_task(args.task, args.model))
        models = load_models(args)
        adapters = attach_lora_adapters(models, args.adapter_folders)
        memory = plan_kv_memory(models.all, available_memory(), *args.memory_limits)
        if memory.reason:
            log.info("KV memory: up to %.2f GB, %s", memory.num_bytes / 1e9, memory.reason)
        if memory.ignores_windows:
            log.info("layers with a sliding window keep all pages, like those with full attention")
        config = SchedulerConfig(
            num_pages=memory.num_pages,
            page_size=args.block_size,
            max_num_batched_tokens=args.max_num_batched_tokens,
            max_num_seqs=args.max_num_seqs,
            max_seq_len=memory.max_seq_len,
            num_drafts=0 if models.draft is None else args.max_drafts,
            enable_prefix_caching=args.enable_prefix_caching,
            max_queue=args.max_queue,
            num_state_slots=memory.num_state_slots,
            state_slot_pages=memory.state_slot_pages,
            kv_groups=memory.groups,
        )
        runner = make_model_runner(args, models, memory)
        scheduler = make_scheduler(args, config)
        cache = args.prefix_cache_dir, args.prefix_cache_disk_bytes
        super().__init__(
            models.tokenizer,
            scheduler,
            runner,
            int.from_bytes(os.urandom(8), "big") if args.seed is None else int(args.seed),
            NgramProposer(args.max_drafts) if args.speculative == "ngram" else None,
            args.tool_call_parser,
            adapters,
            make_disk_cache(*cache, scheduler, runner.models),
        )
        self.task = args.task

    # ---------------------------------------------------------------- batch interface

    @exclusive
    def generate(
        self,
        prompts: Prompts,
        sampling_params: Params = None,
        *,
        enable_thinking: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        lora: str | Sequence[str | None] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Generates completions of one or several prompts; blocks until all finish.

        Args:
            prompts: one prompt or several, each a string (encoded verbatim), token ids (a list or
                an array), or chat messages (`{"role": …, "content": …}`); also vLLM's `{"prompt":
                text}` and `{"prompt_token_ids": token ids}`. Message content is a string or text
                parts; assistant messages may have `tool_calls` and `reasoning_content`.
            sampling_params: shared by all prompts, or one per prompt; `SamplingParams()` if None.
            enable_thinking: passed to the chat template. Also allows reasoning before
                `structured_outputs`, for prompts of any form.
            tools: function tools for the chat template, each as `{"type": "function", "function":
                {"name": …, "description": …, "parameters": a JSON schema}}`.
            chat_template_kwargs: other chat template variables.
            lora: adapter name, shared by all prompts, or one per prompt; None for the
                adapter at `adapter_path`, if any.
            use_tqdm: whether to show a progress bar if standard error is a terminal.

        Returns:
            One output per prompt, in order. A rejected prompt's output has finish_reason "error"
            and a message in `error`; the other prompts are not affected.

        Raises:
            UserError: an invalid prompt type, or a wrong length of `sampling_params` or `lora`.
        """
        self._check_task("text generation", "generate")
        outputs: list[RequestOutput] = []
        prompts_and_params = _with_params(prompts, sampling_params, lora)
        chat = ChatOptions(enable_thinking, tools, chat_template_kwargs)
        with _progress_bar(len(prompts_and_params), use_tqdm) as advance:
            for output in self._run(prompts_and_params, chat, outputs):
                advance(output.metrics is not None)
        return outputs

    def chat(
        self,
        messages: Prompts,
        sampling_params: Params = None,
        use_tqdm: bool = True,
        **options: Any,
    ) -> list[RequestOutput]:
        """Like `generate`, for one conversation or several, each a list of chat messages."""
        if not all(map(is_chat, normalize_prompts(messages))):
            raise UserError(f"messages must be chat messages, got {short_repr(messages)}.")
        return self.generate(messages, sampling_params, use_tqdm=use_tqdm, **options)

    def get_tokenizer(self) -> Any:
        return self.tokenizer

    def stream(
        self,
        prompts: Prompts,
        sampling_params: Params = None,
        *,
        enable_thinking: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        lora: str | Sequence[str | None] | None = None,
    ) -> Iterator[StreamOutput]:
        """Like `generate`, but yields tokens as they are computed.

        Outputs of different prompts interleave; `request_output` is the same object for all outputs
        of a prompt. Requests are queued when the iteration starts and aborted if it stops early.
        """
        self._check_task("text generation", "generate")
        chat = ChatOptions(enable_thinking, tools, chat_template_kwargs)
        return self._run(_with_params(prompts, sampling_params, lora), chat, [])

    def _add_or_reject(
        self,
        prompt: Prompt,
        params: SamplingParams,
        lora: str | None,
        chat: ChatOptions,
        sink: deque[StreamOutput],
    ) -> RequestOutput:
        try:
            return self._encode_and_add(prompt, params, chat, lora=lora, sink=sink)
        except UserError as error:
            output = CompletionOutput(0, finish_reason="error")
            now = time.perf_counter()
            metrics = RequestMetrics(now, finished_time=now)
            request_id = self._new_id()
            request_output = RequestOutput(
                request_id, None, [], [output], metrics, error=str(error)
            )
            rejected = StreamOutput(request_id, 0, "", (), "error", request_output)
            sink.append(rejected._replace(metrics=metrics, error=str(error)))
            return request_output

    def _run(
        self,
        prompts_and_params: Sequence[tuple[Prompt, SamplingParams, str | None]],
        chat: ChatOptions,
        outputs: list[RequestOutput],
    ) -> Iterator[StreamOutput]:
        """Queues and serves requests, adding their outputs to `outputs`; closing it aborts them."""
        sink: deque[StreamOutput] = deque()
        try:
            for prompt, params, lora in prompts_and_params:
                outputs.append(self._add_or_reject(prompt, params, lora, chat, sink))
            while sink or not all(output.finished for output in outputs):
                if not sink:
                    self._compute_step()
                while sink:
                    yield sink.popleft()
            if not self.scheduler.has_requests:
                self.runner.target.release_scratch()
        finally:
            self._abort_all(sink)

    def _check_task(self, what: str, task: str) -> None:
        if self.task != task:
            raise UserError(
                f"{what} requires task='{task}'; this model was loaded with task='{self.task}'."
            )

    # ---------------------------------------------------------------- pooling models

    def embed(self, prompts: Prompts) -> list[list[float]]:
        """Computes a unit-length embedding of each prompt, with an embedding model.

        Args:
            prompts: see `generate`. Texts are encoded with the tokenizer's special tokens, such as
                Qwen3-Embedding's EOS token; include an instruction if the model expects one.
        """
        return self._pool("embed", prompts)

    def score(
        self, query: str, documents: Sequence[str], instruction: str = SCORE_INSTRUCTION
    ) -> list[float]:
        """Scores documents' relevance to a query, 0 to 1, with a reranking model."""
        if isinstance(documents, str):
            raise UserError(f"documents must be a list of strings, got {short_repr(documents)}.")
        prompts = [
            SCORE_TEMPLATE.format(instruction=instruction, query=query, document=document)
            for document in documents
        ]
        return [vector[0] for vector in self._pool("score", prompts)]

    @exclusive
    def _pool(self, task: str, prompts: Prompts) -> list[list[float]]:
        self._check_task(task, task)
        outputs: list[RequestOutput] = []
        for _ in self._run(_with_params(prompts, POOLING_PARAMS), ChatOptions(), outputs):
            pass
        for index, output in enumerate(outputs):
            if output.error is not None:
                raise UserError(f"prompt {index}: {output.error}")
        return [output.outputs[0].pooled or [] for output in outputs]

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
        lora: str | None = None,
    ) -> str:
        """Queues a request, to be served by `step`; returns its id.

        Args:
            prompt, sampling_params, enable_thinking, tools, chat_template_kwargs, lora: see
                `generate`.
            request_id: unique among unfinished requests; generated if None.
            timeout: seconds until the request ends with finish_reason "timeout" and partial output,
                time in the queue included; None for no timeout.

        Raises:
            UserError: an empty prompt, an unknown token id or adapter, more tokens than fit in the
                model's context or the KV memory, or a duplicate id.
            QueueFullError: the queue is full.
        """
        self._check_task("text generation", "generate")
        params = _check_params(sampling_params or SamplingParams())
        chat = ChatOptions(enable_thinking, tools, chat_template_kwargs)
        request_output = self._encode_and_add(
            prompt, params, chat, request_id=request_id, timeout=timeout, lora=lora
        )
        return request_output.request_id

    def _encode_and_add(
        self, prompt: Prompt, params: SamplingParams, chat: ChatOptions, **options: Any
    ) -> RequestOutput:
        """Encodes a prompt and queues it; see `add_tokenized_request` for `options`."""
        ids = encode_prompt(self.tokenizer, prompt, chat, self.scheduler.config.max_seq_len)
        text: Any = prompt if isinstance(prompt, str) or is_chat(prompt) else None
        thinking = chat.thinking_enabled
        return self.add_tokenized_request(
            ids, params, enable_thinking=thinking, prompt=text, **options
        )

    @exclusive
    def reserve(self) -> None:
        """Allocates the whole KV cache now instead of on demand."""
        config = self.scheduler.config
        num_slots = min(config.num_state_slots // 2, default_state_slots(config.max_num_seqs))
        num_pages = config.num_pages - math.ceil(num_slots * config.state_slot_pages)
        for model in self.runner.models:
            model.populate(num_pages, num_slots)

    def describe(self) -> dict[str, Any]:
        """Returns the scheduler's configuration as JSON-serializable data."""
        return asdict(self.scheduler.config)


@contextmanager
def _progress_bar(total: int, enabled: bool) -> Iterator[Callable[[int], None]]:
    if not (enabled and is_terminal()):
        yield lambda number: None
        return
    # Imported lazily: importing rich takes time and memory.
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("generating", total=total)
        yield lambda number: progress.advance(task, number)


def _with_params(
    prompts: Prompts, params: Params, lora: str | Sequence[str | None] | None = None
) -> list[tuple[Prompt, SamplingParams, str | None]]:
    prompt_list = normalize_prompts(prompts)
    if params is None or not isinstance(params, Sequence):
        params = [params or SamplingParams()] * len(prompt_list)
    if len(params) != len(prompt_list):
        raise UserError(
            f"expected one SamplingParams per prompt, got {len(params)} for {len(prompt_list)} "
            "prompts."
        )
    if isinstance(lora, str) or not isinstance(lora, Sequence):
        lora = [lora] * len(prompt_list)
    if len(lora) != len(prompt_list):
        raise UserError(
            f"expected one lora entry per prompt, got {len(lora)} for {len(prompt_list)} prompts."
        )
    return list(zip(prompt_list, map(_check_params, params), lora, strict=True))


def _check_params(params: Any) -> SamplingParams:
    if not isinstance(params, SamplingParams):
        raise UserError(f"sampling_params must be a SamplingParams, got {short_repr(params)}.")
    return params
