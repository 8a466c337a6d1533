"""EngineCore: requests in, stream outputs out, one step at a time.

A step is three calls: schedule, run the model, process the outputs. `factory.py` loads the models.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from functools import cached_property
from typing import Any

from ..errors import UserError, check_token_ids, short_repr, summarize, validate_number
from ..models import memory
from ..models.tokenizer.chat_template import think_tags
from ..models.tokenizer.tokenizer import detokenizer_with_leading_space
from .execution.disk_tier import DiskCache
from .execution.exclusive_use import recovering
from .execution.sampler import TokenCounts, completion_seed
from .inputs.sampling_params import SamplingParams
from .model_runner import ModelRunner
from .outputs.output_processor import OutputProcessor, ReasoningTokens
from .scheduling.request import (
    ChunkOutput,
    CompletionOutput,
    EngineRequest,
    FinishReason,
    RequestMetrics,
    RequestOutput,
    SchedulerOutput,
    StreamOutput,
)
from .scheduling.scheduler import Scheduler
from .spec_decode.draft_tokens import GrammarProposer, NgramProposer
from .structured_output.compiler import GrammarCompiler, StructuredOutputGrammar
from .structured_output.grammar import ThinkingState, initial_thinking_state
from .structured_output.thinking_budget import ThinkingBudget, thinking_tokens

log = logging.getLogger("tiny_llm.engine")

MEMORY_CHECK_INTERVAL = 1.0  # seconds


class EngineCore:
    """Drives requests through scheduler, model runner and output processors.

    Args:
        seed: base seed for requests without their own.
        proposer: n-gram proposer, or None; not used where a grammar forces tokens.
        adapters: LoRA adapter indices by name; the key None is for requests without `lora`.

    Attributes:
        grammars: grammar compiler; thread-safe, so a server may compile on another thread.
        step_seconds: total time of all steps; the excess over `runner.seconds` is overhead.
        num_memory_evictions: cached pages evicted because the system was low on memory.
    """

    def __init__(
        self,
        tokenizer: Any,
        scheduler: Scheduler,
        runner: ModelRunner,
        seed: int,
        proposer: NgramProposer | None,
        tool_call_parser: str,
        adapters: Mapping[str | None, int],
        disk_cache: DiskCache | None,
    ):
        self.tokenizer = tokenizer
        self.scheduler = scheduler
        self.runner = runner
        self.seed = seed
        self.disk_cache = disk_cache
        self.vocab_size = runner.target.vocab_size
        self.grammars = GrammarCompiler(tokenizer, self.vocab_size, tool_call_parser)
        self.step_seconds = 0.0
        self.adapters = adapters
        self._proposer = proposer
        self._grammar_proposer: GrammarProposer | None = GrammarProposer()
        self._processors: dict[str, OutputProcessor] = {}  # by `EngineRequest.request_id`
        # By the caller's request id: the processors of its `n` completions.
        self._processors_by_request: dict[str, list[OutputProcessor]] = {}
        page_bytes = sum(model.row_bytes("page") for model in runner.models)
        self._kv_cache_bytes = scheduler.config.num_pages * page_bytes
        self._num_added = 0
        self._next_memory_check = 0.0
        self.num_memory_evictions = 0
        self._outputs: deque[StreamOutput] = deque()  # not yet returned by `step`
        self._step_in_model: SchedulerOutput | None = None  # the step that the model computes now

    @recovering
    def add_tokenized_request(
        self,
        ids: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        enable_thinking: bool = False,
        timeout: float | None = None,
        lora: str | None = None,
        prompt: str | list[dict[str, Any]] | None = None,
        sink: deque[StreamOutput] | None = None,
    ) -> RequestOutput:
        """Queues one request per completion of a prompt; on an error, queues none.

        Other arguments and errors: see `LLM.add_request`.

        Args:
            prompt: the text or messages that `ids` encode, for `RequestOutput.prompt`.
            sink: receives the request's stream outputs; if None, `step` returns them.
        """
        self.scheduler.check_queue_limit(params.n)
        if timeout is not None:
            validate_number("timeout", timeout, 0, math.inf, "a number of seconds > 0", above=True)
        adapter = self._adapter_index(lora)
        check_token_ids("the prompt", ids, self.vocab_size)
        check_token_ids("logit_bias", params.logit_bias or (), self.vocab_size)
        generated_id = self._new_id()
        name = generated_id if request_id is None else request_id
        completion_ids = [name if params.n == 1 else f"{name}#{index}" for index in range(params.n)]
        is_used = any(completion_id in self._processors for completion_id in completion_ids)
        if is_used or name in self._processors_by_request:
            raise UserError(f"request_id '{name}' is already used by an unfinished request.")
        grammars = self.compile_grammar(ids, params, enable_thinking=enable_thinking)
        seed = params.seed
        if seed is None:
            seed = completion_seed(self.seed, int(generated_id))
        request_output = RequestOutput(
            name,
            prompt,
            list(ids),
            [CompletionOutput(index) for index in range(params.n)],
            RequestMetrics(time.perf_counter()),
            prompt_logprobs=None if params.prompt_logprobs is None else [None],
        )
        deadline = None if timeout is None else request_output.metrics.arrival_time + timeout
        processors = []
        for output, grammar in zip(request_output.outputs, grammars, strict=True):
            index = output.index
            request = self._make_request(
                completion_ids[index], ids, params, seed, index, grammar, adapter
            )
            processor = OutputProcessor(
                request,
                request_output,
                output,
                detokenizer_with_leading_space(self.tokenizer),
                self.tokenizer.eos_token_ids,
                self._outputs if sink is None else sink,
                deadline,
                self._reasoning_tokens(ids) if enable_thinking and params.stop else None,
            )
            # Can raise only for the first completion, before any is queued: all share the prompt.
            self.scheduler.add(request)
            self._processors[request.request_id] = processor
            processors.append(processor)
        self._processors_by_request[name] = processors
        return request_output

    def _adapter_index(self, lora: str | None) -> int:
        if not isinstance(lora, str | None) or lora not in self.adapters:
            names = [name for name in self.adapters if name is not None]
            allowed = f"one of {summarize(names)}" if names else "None: no adapters are loaded"
            raise UserError(f"lora must be {allowed}, got {short_repr(lora)}.")
        return self.adapters[lora]

    def _make_request(
        self,
        request_id: str,
        ids: Sequence[int],
        params: SamplingParams,
        seed: int,
        index: int,
        grammar: StructuredOutputGrammar | None,
        adapter: int,
    ) -> EngineRequest:
        eos_token_ids = () if params.ignore_eos else self.tokenizer.eos_token_ids
        is_scored = params.prompt_logprobs is not None and index == 0
        max_reasoning, thinking_budget = params.thinking_token_budget, None
        if max_reasoning is not None and (reasoning := self._reasoning_tokens(ids)) is not None:
            thinking_budget = ThinkingBudget(len(ids), max_reasoning, *astuple(reasoning))
        return EngineRequest(
            request_id,
            ids,
            params,
            params.max_tokens,
            completion_seed(seed, index),
            num_to_score=len(ids) - 1 if is_scored else 0,
            end_token_ids=(*eos_token_ids, *(params.stop_token_ids or ())),
            grammar=grammar,
            thinking_budget=thinking_budget,
            token_counts=TokenCounts(ids, self.vocab_size) if params.has_penalties else None,
            adapter=adapter,
        )

    def compile_grammar(
        self,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        enable_thinking: bool = False,
    ) -> list[StructuredOutputGrammar | None]:
        """Compiles and caches the grammar of `structured_outputs`.

        Thread-safe, unlike the other methods: another thread can compile before `add_request`.

        Returns:
            One grammar per completion; each is None without `structured_outputs`.

        Raises:
            UserError: the grammar is rejected, or `llguidance` is not installed.
        """
        structured_outputs, n = sampling_params.structured_outputs, sampling_params.n
        if structured_outputs is None:
            return [None] * n
        can_think = bool(getattr(self.tokenizer, "has_thinking", False)) and enable_thinking
        thinking = self._thinking_state(prompt_token_ids, can_think)
        return [self.grammars.compile(structured_outputs, thinking) for _ in range(n)]

    def _reasoning_tokens(self, ids: Sequence[int]) -> ReasoningTokens | None:
        if self._thinking_tokens is None:
            return None
        state = self._thinking_state(ids, enable_thinking=False)
        return ReasoningTokens(*self._thinking_tokens, state is ThinkingState.OPEN)

    @cached_property
    def _thinking_tokens(self) -> tuple[int, int] | None:
        return thinking_tokens(self.tokenizer)

    def _thinking_state(self, ids: Sequence[int], enable_thinking: bool) -> ThinkingState:
        """State after a prompt; chat templates put think tags among its last 8 tokens."""
        tail: str = self.tokenizer.decode(list(ids[-8:]))
        return initial_thinking_state(tail, enable_thinking, think_tags(self.tokenizer))

    def _new_id(self) -> str:
        while str(self._num_added) in self._processors_by_request:
            self._num_added += 1
        self._num_added += 1
        return str(self._num_added - 1)

    @recovering
    def abort(self, request_id: str) -> bool:
        """Ends a request in any state and releases its pages.

        Emits a last output with finish_reason "abort". Returns False if the request is unknown or
        finished.
        """
        processors = list(self._processors_by_request.get(request_id, []))
        for processor in processors:
            self._finish(processor, [], "abort")
        return bool(processors)

    @recovering
    def _abort_all(self, sink: deque[StreamOutput]) -> None:
        for processor in [each for each in self._processors.values() if each.sink is sink]:
            self._finish(processor, [], "abort")

    @recovering
    def precompute(self, token_ids: Sequence[int], lora: str | None = None) -> bool:
        """Prefills one page of an expected prompt into the prefix cache.

        For idle periods: a no-op while there are unfinished requests. `token_ids` is a prefix of
        the prompt; only its full pages are computed. Returns whether another page can be computed.
        """
        scheduler, adapter = self.scheduler, self._adapter_index(lora)
        size = scheduler.config.page_size
        num_cached = scheduler.pages.num_cached(token_ids, adapter)
        end = (num_cached + 1) * size
        if scheduler.has_requests or end > len(token_ids):
            return False
        totals = scheduler.num_prompt_tokens, scheduler.num_cached_tokens
        request = EngineRequest(
            "(ahead)", token_ids[:end], SamplingParams(temperature=0), 1, adapter=adapter
        )
        try:
            scheduler.add(request)
            step = scheduler.schedule()
            if step.chunks:
                scheduler.update_from_output(step, self.runner.run(step))
        except UserError:  # too long, so any prompt with this prefix will be rejected
            return False
        except Exception:  # best effort: no caller depends on success
            log.exception("failed to precompute a prefix cache page")
        scheduler.finish(request, "abort")
        if self.disk_cache is not None:
            self.disk_cache.store_new()
        # The prefix cache hit rate counts only requests from clients.
        scheduler.num_prompt_tokens, scheduler.num_cached_tokens = totals
        has_grown = scheduler.pages.num_cached(token_ids, adapter) > num_cached
        return has_grown and end + size <= len(token_ids)

    @recovering
    def check_memory(self) -> bool:
        """Releases cached memory if memory is low; queues disk cache writes.

        Every step calls it; an idle server should, too. A no-op within a second of the last check.
        Returns whether memory was low or the disk cache's statistics have changed.
        """
        now = time.monotonic()
        if now < self._next_memory_check:
            return False
        self._next_memory_check = now + MEMORY_CHECK_INTERVAL
        is_short = memory.is_memory_short()
        if is_short:
            self.release_cached_memory()
        if self.disk_cache is None:
            return is_short
        self.disk_cache.store_new()
        return self.disk_cache.poll_stats() or is_short

    @recovering
    def release_cached_memory(self) -> None:
        before = self.runner.nbytes
        num_evicted = self.scheduler.pages.evict_half()
        self.num_memory_evictions += num_evicted
        self.runner.release(*self.scheduler.pages.free_rows())
        self.runner.target.release_scratch()
        memory.release_free_memory()
        if num_evicted or self.runner.nbytes < before:
            log.warning(
                "low memory: evicted %d cached pages, released %.1f MB of KV memory",
                num_evicted,
                (before - self.runner.nbytes) / 1e6,
            )

    def step(self) -> list[StreamOutput]:
        """Computes a step, unless outputs are pending, and returns the outputs.

        Excludes outputs that go to a `sink`. If the model raises an exception, the requests in the
        step end with its message in `error`; the others continue.
        """
        if not self._outputs:
            self._compute_step()
        outputs = list(self._outputs)
        self._outputs.clear()
        return outputs

    @property
    def has_unfinished_requests(self) -> bool:
        return self.scheduler.has_requests or bool(self._outputs)

    @recovering
    def _compute_step(self) -> None:
        self._expire_requests()
        self.check_memory()
        if not self.scheduler.has_requests:
            return
        started = time.perf_counter()
        if self.disk_cache is not None:
            self.disk_cache.poll()
        step = self.scheduler.schedule()
        if self.disk_cache is not None and not step.chunks:
            self.disk_cache.wait()
            return
        for chunk in step.chunks:
            output = self._processors[chunk.request.request_id].request_output
            if output.metrics.first_scheduled_time is None:
                output.metrics = replace(output.metrics, first_scheduled_time=started)
        try:
            self._step_in_model = step
            results = self.runner.run(step)
            self._step_in_model = None
            self._process_outputs(step, results)
        except Exception as error:
            self._step_in_model = None
            self._fail_step(step, error)
        # The memory that pages and state slots share may have passed from one to the other.
        if self.runner.nbytes > self._kv_cache_bytes:
            self.runner.release(*self.scheduler.pages.free_rows())
        seconds = time.perf_counter() - started
        self.step_seconds += seconds
        self.scheduler.record_step_time(step, seconds)
        if self.disk_cache is not None:
            self.disk_cache.store_new()

    @recovering
    def close(self) -> None:
        """Writes pending pages to the disk cache and detaches it, if there is one.

        Pages already queued are also written when the object is deleted or the process exits.
        """
        if self.disk_cache is not None:
            self.disk_cache.close()
            self.disk_cache = None

    def _expire_requests(self) -> None:
        now = time.perf_counter()
        for processor in list(self._processors.values()):
            if processor.deadline is not None and now >= processor.deadline:
                self._finish(processor, [], "timeout")

    def _process_outputs(self, step: SchedulerOutput, results: dict[str, ChunkOutput]) -> None:
        updates = []
        for request_id, result in results.items():
            processor = self._processors[request_id]
            if result.error is not None:
                self._finish(processor, [], "error", result.error)
                continue
            token_ids, reason = processor.process(result)
            if not token_ids:  # a chunk that scores prompt tokens without sampling
                continue
            grammar = processor.request.grammar
            error = None if grammar is None else grammar.accept_tokens(token_ids)
            if error is not None:
                self._finish(processor, [], "error", error)
                continue
            # Drop the tokens after the one that ended the completion. The draft model may lack only
            # the last of them, so it has computed all others.
            if len(token_ids) < len(result.token_ids):
                results[request_id] = replace(result, token_ids=token_ids, num_draft_uncomputed=0)
            updates.append((processor, token_ids, reason))
        self.scheduler.update_from_output(step, results)
        for processor, token_ids, reason in updates:
            request = processor.request
            # Only the first completion's hits: the others also hit pages that the first computed.
            if processor.output.index == 0:
                processor.request_output.num_cached_tokens = request.num_cached_tokens
            if reason is None:
                self.scheduler.update_draft_tokens(request, self._propose_draft_tokens(request))
                processor.emit(token_ids, None)
            else:
                self._finish(processor, token_ids, reason)

    def _propose_draft_tokens(self, request: EngineRequest) -> Sequence[int]:
        num_running = len(self.scheduler.running)
        tokens: Sequence[int] = ()
        if request.grammar is not None and self._grammar_proposer is not None:
            tokens = self._grammar_proposer.propose(request, num_running)
        if not tokens and self._proposer is not None:
            tokens = self._proposer.propose(request, num_running)
        return tokens

    def recover(self) -> None:
        """Restores a consistent state after an interrupt.

        If the model was computing, the step's requests are queued again. Otherwise, all requests
        are aborted and the prefix cache is lost, because ownership may be half updated.
        """
        step, self._step_in_model = self._step_in_model, None
        for model in self.runner.models:
            model.complete_writes()
        if step is not None:
            self.scheduler.requeue(step)
            return
        processors = list(self._processors.values())
        self._processors.clear()
        self._processors_by_request.clear()
        self.scheduler.reset()
        if self.disk_cache is not None:
            self.disk_cache.attach()
        for processor in processors:
            if processor.output.finish_reason is None:
                processor.emit([], "abort")

    def _fail_step(self, step: SchedulerOutput, error: Exception) -> None:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        for chunk in step.chunks:
            processor = self._processors.get(chunk.request.request_id)
            if processor is not None:
                self._finish(processor, [], "error", f"the step failed: {reason}.")

    def _finish(
        self,
        processor: OutputProcessor,
        token_ids: Sequence[int],
        reason: FinishReason,
        error: str | None = None,
    ) -> None:
        request, request_id = processor.request, processor.request_output.request_id
        if self.disk_cache is not None:
            self.disk_cache.on_finish(request)
        self.scheduler.finish(request, reason, error)
        processor.request_output.error = processor.request_output.error or error
        processor.emit(token_ids, reason)
        del self._processors[request.request_id]
        self._processors_by_request[request_id].remove(processor)
        if not self._processors_by_request[request_id]:
            del self._processors_by_request[request_id]
