"""LLM: the engine's Python interface.

    llm = LLM("demo")
    for output in llm.generate(["RoPE is", "Paged attention is"], SamplingParams(max_tokens=20)):
        print(output.text)

An `LLM` may be used from any thread, one at a time; only `compile_grammar` may run concurrently.
`step`, `abort` and `close` are in `core.py`.
"""

import logging
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Literal

from ..errors import UserError, check_int, short_repr, validate_bool, validate_seed
from ..kv_cache.int8_rows import KvCacheDtype
from ..models.heads.pooling import SCORE_INSTRUCTION, SCORE_TEMPLATE
from ..models.hub import is_terminal
from ..models.memory import available_memory
from ..models.tokenizer.chat_template import set_chat_template
from .core import EngineCore
from .exclusive_use import exclusive
from .execution.disk_cache import check_disk_cache_options, make_disk_cache
from .execution.kv_memory import (
    check_kv_cache_bytes,
    choose_kv_cache_bytes,
    choose_max_seq_len,
    default_state_slots,
    split_kv_memory,
)
from .factory import (
    Model,
    adapter_folders,
    attach_to_target,
    check_options,
    common_window,
    load_models,
    make_model_runner,
    make_proposer,
    make_scheduler,
    resolve_task,
)
from .inputs.prompts import ChatOptions, Prompt, Prompts, encode_prompt, is_chat, normalize_prompts
from .inputs.sampling_params import SamplingParams
from .scheduling.config import SchedulerConfig
from .scheduling.events import Listener
from .scheduling.outputs import CompletionOutput, RequestMetrics, RequestOutput, StreamOutput
from .tool_calls.registry import AUTO

# For all prompts, or a sequence with one item per prompt; None for the defaults.
Params = SamplingParams | Sequence[SamplingParams] | None

log = logging.getLogger("tiny_llm.engine")

DEFAULT_MAX_NUM_SEQS = 32
DEFAULT_NUM_DRAFTS = 4  # draft tokens per step with a draft model
DEFAULT_NUM_MTP_DRAFTS = 1  # draft tokens per step with speculative="mtp"

POOLING_PARAMS = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True)


class LLM(EngineCore):
    """Serves many requests concurrently with a fixed KV memory budget.

    With a seed in its parameters, a request's output depends only on the model, its prompt and its
    parameters, not on other requests, batching, chunked prefill, cached prefixes, preemption or
    draft tokens. Outputs are bit-identical for a given version, instruction set (which selects the
    kernels) and `tensor_parallel_size`. Arguments are as in vLLM where it has an equivalent.

    Args:
        model: short name, hub id, folder, GGUF file, ollama:NAME, lmstudio:NAME, or the result of
            `load_weights` or `load`.
        kv_cache_bytes: upper bound on KV memory, including recurrent states and the draft model's
            KV memory. None uses three quarters of the memory left by the weights, but at most what
            `max_num_seqs` requests of `max_model_len` tokens need. Used on demand and kept until
            the system runs low on memory; `reserve` allocates all of it. Pages and recurrent states
            share it by use: one state per running request, and checkpoints from which later
            requests with a common prefix resume.
        block_size: tokens per page. Only full pages are shared, so a smaller page size increases
            sharing.
        max_num_batched_tokens: upper bound on tokens per step, draft tokens included. Larger values
            increase prefill throughput and inter-token latency.
        max_num_seqs: upper bound on concurrently running requests.
        max_model_len: maximum prompt plus output tokens; None for the model's context length.
        enable_prefix_caching: whether to keep and share the pages of common prefixes.
        prefix_cache_dir: directory that keeps prefix cache pages after eviction from memory and
            for later runs; several processes may share it. Unreadable pages are recomputed.
        prefix_cache_disk_bytes: upper bound on the total size of the directory's pages, over all
            models; the least recently used pages are evicted. 1e10 by default.
        draft_model: smaller model that drafts tokens, with the same vocabulary; see `model`.
        num_drafts: upper bound on draft tokens per request and step; 4 by default with a draft
            model, 7 with "ngram", 1 with "mtp".
        speculative: "ngram" finds the last tokens earlier in the prompt or output and drafts the
            tokens that followed. "mtp" drafts with the multi-token prediction layer in Qwen3.5 and
            Qwen3-Next checkpoints. Incompatible with `draft_model`.
        attention_backend: "paged" reads pages in place. For comparison, "flash" (the course's Week
            2 kernel, bit-identical to "paged") and "reference" (plain MLX) gather them first.
        kv_cache_dtype: "auto" stores keys and values in the activations' dtype. "int8" stores
            8-bit integers with a scale per token and head: about twice as many tokens in the same
            memory, with a small error. Does not affect recurrent states.
        activation_bits: 8 quantizes the inputs of quantized layers to 8 bits, with a scale per
            token and weight group: faster prefill on a CPU, with about the error of 8-bit weights.
            16 does not quantize activations.
        chat_template: Jinja source that replaces the model's chat template, or None.
        load_format: "auto" loads the weights of a model given by name; "dummy" generates random
            weights with the same shapes and formats, for benchmarks.
        tensor_parallel_size: number of processes, each with a shard of the weights and KV cache;
            started on this machine, unless a launcher has started them. If one dies, all exit.
            `model` must be a name, id or folder. Affects rounding, and thus the output.
        task: "generate", "embed" or "score", for the method of that name. "auto" is "embed" for
            a checkpoint with a sentence-transformers pooling layer, otherwise "generate".
        scheduling_policy: "fcfs" computes prompts in order of arrival. "fair", the default of
            `tiny-llm serve`, lets short prompts overtake long ones: a request is overtaken by at
            most about as many prompt tokens as its own prompt has.
        step_time_target: with "fair", target duration in seconds of steps with decoding requests;
            limits the prompt tokens in these steps. None for no limit. So that prompts progress, an
            occasional step may take up to ten times as long.
        adapter_path: folder of a LoRA adapter, as written by `mlx_lm.lora`, for all requests.
        lora_modules: LoRA adapter folders by name; a request selects one with `lora`.
        max_queue: maximum requests queued beyond `max_num_seqs`; more raise `QueueFullError`. None
            for no limit.
        tool_call_parser: tool-call format: "hermes", "qwen3_coder", "llama3_json" or "mistral";
            "auto" detects it from the chat template.
        seed: base seed for requests without a seed, combined with their arrival order; None for a
            random one.
        listener: callback for every event (`scheduling/events.py`), for example a `Recorder`.

    Raises:
        UserError: the model cannot be loaded, the arguments conflict, or the KV memory is too small
            for one page, plus two state slots if the model has recurrent state.
    """

    @exclusive
    def __init__(
        self,
        model: Model,
        *,
        kv_cache_bytes: float | None = None,
        block_size: int = 32,
        max_num_batched_tokens: int = 256,
        max_num_seqs: int = DEFAULT_MAX_NUM_SEQS,
        max_model_len: int | None = None,
        enable_prefix_caching: bool = True,
        prefix_cache_dir: str | os.PathLike[str] | None = None,
        prefix_cache_disk_bytes: float | None = None,
        draft_model: Model | None = None,
        num_drafts: int | None = None,
        speculative: Literal["ngram", "mtp"] | None = None,
        attention_backend: str = "paged",
        kv_cache_dtype: KvCacheDtype = "auto",
        activation_bits: Literal[16, 8] = 16,
        chat_template: str | None = None,
        load_format: str = "auto",
        tensor_parallel_size: int = 1,
        task: Literal["auto", "generate", "embed", "score"] = "auto",
        scheduling_policy: Literal["fcfs", "fair"] = "fcfs",
        step_time_target: float | None = None,
        adapter_path: str | os.PathLike[str] | None = None,
        lora_modules: Mapping[str, str | os.PathLike[str]] | None = None,
        max_queue: int | None = None,
        tool_call_parser: str = AUTO,
        seed: int | None = 0,
        listener: Listener | None = None,
    ):
        check_int("block_size", block_size, 1)
        validate_bool("enable_prefix_caching", enable_prefix_caching)
        proposer = make_proposer(speculative, draft_model, num_drafts)
        check_options(load_format, attention_backend, kv_cache_dtype, activation_bits, listener)
        disk_options = prefix_cache_dir, prefix_cache_disk_bytes
        check_disk_cache_options(*disk_options, enable_prefix_caching)
        seed = int.from_bytes(os.urandom(8), "big") if seed is None else validate_seed(seed)
        self.task = resolve_task(task, model)
        folders = adapter_folders(adapter_path, lora_modules)
        options = {
            "page_size": block_size,
            "attention_backend": attention_backend,
            "kv_cache_dtype": kv_cache_dtype,
            "activation_bits": activation_bits,
        }
        mtp = speculative == "mtp"
        models = load_models(
            model, draft_model, tensor_parallel_size, load_format, options, self.task, mtp
        )
        adapters = attach_to_target(models, folders)
        max_seq_len = choose_max_seq_len(max_model_len, models.all)
        if kv_cache_bytes is None:
            kv_memory, reason = choose_kv_cache_bytes(
                block_size, max_num_seqs, max_seq_len, models.all, available_memory()
            )
            log.info("KV memory: up to %.2f GB, %s", kv_memory / 1e9, reason)
        else:
            kv_memory = check_kv_cache_bytes(kv_cache_bytes)
        num_pages, num_state_slots, slot_pages = split_kv_memory(
            kv_memory, block_size, max_num_seqs, models.all
        )
        default_drafts = DEFAULT_NUM_MTP_DRAFTS if mtp else DEFAULT_NUM_DRAFTS
        config = SchedulerConfig(
            num_pages=num_pages,
            page_size=block_size,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            max_seq_len=max_seq_len,
            num_drafts=0 if models.draft is None else num_drafts or default_drafts,
            enable_prefix_caching=enable_prefix_caching,
            max_queue=max_queue,
            num_state_slots=num_state_slots,
            state_slot_pages=slot_pages,
            window=common_window(models.all),
        )
        if chat_template is not None:
            set_chat_template(models.tokenizer, chat_template)
        runner = make_model_runner(
            models, list(folders.values()), num_pages, num_state_slots, self.task
        )
        scheduler = make_scheduler(config, listener, scheduling_policy, step_time_target)
        super().__init__(
            models.tokenizer,
            scheduler,
            runner,
            seed,
            proposer,
            tool_call_parser,
            adapters,
            make_disk_cache(*disk_options, scheduler, runner.models),
        )

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
        """Like `generate`, for chat messages only: one list of them, or several."""
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
        """Serves requests and fills `outputs`; if it ends early, aborts the others."""
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
        """Allocates all of `kv_cache_bytes` now, so that no later step has to."""
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
