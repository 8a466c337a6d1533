"""The engine's core: requests in, news of their answers out, a step at a time.

A step is three calls: the scheduler plans it, the runner computes it, and the new tokens go to the
answers and back to the scheduler. This file does not know where models come from.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from ..errors import UserError, check_token_ids
from ..models.tokenizer.detokenizer import detokenizer_keeping_space
from .execution.sampler import TokenCounts, completion_seed
from .inputs.prompts import ChatOptions, Prompt, encode_prompt, is_token_ids
from .inputs.sampling_params import SamplingParams
from .inputs.validation import array_to_list, validate_number
from .model_runner import ModelRunner
from .output_processor import OutputProcessor
from .scheduling.batch import ChunkOutput, SchedulerOutput
from .scheduling.outputs import CompletionOutput, RequestMetrics, RequestOutput, StreamOutput
from .scheduling.request import EngineRequest, FinishReason
from .scheduling.scheduler import Scheduler
from .spec_decode.grammar_proposer import DraftProposer, GrammarProposer
from .structured_output.compiler import GrammarCompiler, StructuredOutputGrammar
from .structured_output.grammar import ThinkingState, initial_thinking_state
from .structured_output.thinking_budget import ThinkingBudget, thinking_tokens

log = logging.getLogger("tiny_llm.engine")

PRECOMPUTE_REQUEST_ID = "(ahead)"  # the id of a request that nobody has sent


class EngineCore:
    """Takes requests through scheduler and runner.

    Args:
        tokenizer: as `mlx_lm.load` returns it.
        scheduler: plans the steps.
        runner: computes them.
        seed: for requests that have none.
        proposers: propose draft tokens without a model; the first with any wins.

    Attributes:
        tokenizer, scheduler, runner, seed: as given.
        vocab_size: V of the model that answers.
        grammars: compiles what requests ask for; a server may do so beforehand, in other threads.
        step_seconds: time spent in steps; `runner.seconds` of it were not bookkeeping.
    """

    def __init__(
        self,
        tokenizer: Any,
        scheduler: Scheduler,
        runner: ModelRunner,
        seed: int,
        proposers: Sequence[DraftProposer] = (GrammarProposer(),),
    ):
        self.tokenizer = tokenizer
        self.scheduler = scheduler
        self.runner = runner
        self.seed = seed
        self.vocab_size = runner.target.vocab_size
        self.grammars = GrammarCompiler(tokenizer, self.vocab_size)
        self.step_seconds = 0.0
        self._proposers = proposers
        self._processors: dict[str, OutputProcessor] = {}  # by the id of the scheduler's request
        self._processors_by_request: dict[
            str, list[OutputProcessor]
        ] = {}  # by the id of the caller's request
        self._num_added = 0

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str | None,
        chat: ChatOptions,
        sink: deque[StreamOutput],
        timeout: float | None = None,
    ) -> RequestOutput:
        """Adds the `n` requests of a prompt, or none of them if one is refused.

        Args:
            prompt, params, request_id, timeout: see `LLM.add_request`, errors too.
            chat: how the messages of a chat become text.
            sink: where news of the answers go.
        """
        self.scheduler.check_queue_limit(params.n)
        if timeout is not None:
            validate_number("timeout", timeout, 0, math.inf, "a number of seconds > 0", above=True)
        prompt = array_to_list(prompt)
        ids = encode_prompt(self.tokenizer, prompt, chat, self.scheduler.config.max_seq_len)
        check_token_ids("the prompt", ids, self.vocab_size)
        check_token_ids("logit_bias", params.logit_bias or (), self.vocab_size)
        own_name = self.new_id()
        name = own_name if request_id is None else request_id
        own_ids = [name if params.n == 1 else f"{name}#{index}" for index in range(params.n)]
        if name in self._processors_by_request or any(
            own_id in self._processors for own_id in own_ids
        ):
            raise UserError(f"request_id '{name}' is taken by a request that is not finished.")
        grammars = self._grammars(ids, params, chat.thinking_enabled)
        seed = params.seed if params.seed is not None else completion_seed(self.seed, int(own_name))
        request_output = RequestOutput(
            name,
            None if is_token_ids(prompt) else prompt,  # type: ignore[arg-type]
            ids,
            [CompletionOutput(index) for index in range(params.n)],
            RequestMetrics(time.perf_counter()),
        )
        deadline = None if timeout is None else request_output.metrics.arrival_time + timeout
        eos_token_ids = self.tokenizer.eos_token_ids
        answers = []
        for own_id, output, grammar in zip(own_ids, request_output.outputs, grammars, strict=True):
            own_seed = completion_seed(seed, output.index)
            request = EngineRequest(own_id, ids, params, params.max_tokens, own_seed)
            request.grammar = grammar
            request.thinking_budget = self._thinking_budget(request)
            if params.has_penalties:
                request.token_counts = TokenCounts(request, self.vocab_size)
            if params.prompt_logprobs is not None and output.index == 0:
                request.num_to_score = len(ids) - 1
                request_output.prompt_logprobs = [None]
            detokenizer = detokenizer_keeping_space(self.tokenizer)
            answer = OutputProcessor(
                request, request_output, output, detokenizer, eos_token_ids, sink, deadline
            )
            answers.append(answer)
            self.scheduler.add(request)  # refuses the first, or none
            self._processors[own_id] = answers[-1]
        self._processors_by_request[name] = answers
        return request_output

    def compile_grammar(
        self, ids: Sequence[int], params: SamplingParams, thinking_enabled: bool
    ) -> None:
        """Compiles the grammar of a request; see `LLM.compile_grammar`."""
        self._grammars(ids, params, thinking_enabled)

    def _grammars(
        self, ids: Sequence[int], params: SamplingParams, thinking_enabled: bool
    ) -> list[StructuredOutputGrammar | None]:
        """A grammar for each of the `n` answers to a prompt; None where the form is free."""
        form = params.structured_outputs
        if form is None:
            return [None] * params.n
        can_think = bool(getattr(self.tokenizer, "has_thinking", False))
        thinking = initial_thinking_state(self._prompt_tail(ids), can_think and thinking_enabled)
        return [self.grammars.compile(form, thinking) for _ in range(params.n)]

    def _thinking_budget(self, request: EngineRequest) -> ThinkingBudget | None:
        """What bounds the thoughts of a request; None if it asks for no bound."""
        most = request.params.thinking_token_budget
        if most is None or self._thinking_tokens is None:
            return None
        thinking = initial_thinking_state(
            self._prompt_tail(request.token_ids), enable_thinking=False
        )
        return ThinkingBudget(request, most, *self._thinking_tokens, thinking is ThinkingState.OPEN)

    @cached_property
    def _thinking_tokens(self) -> tuple[int, int] | None:
        return thinking_tokens(self.tokenizer)

    def _prompt_tail(self, ids: Sequence[int]) -> str:
        """The text of a prompt's end: a template writes few tokens after `<think>`."""
        text: str = self.tokenizer.decode(list(ids[-8:]))
        return text

    def new_id(self) -> str:
        """An id that no other request has: the next number."""
        while str(self._num_added) in self._processors_by_request:  # a caller chose it
            self._num_added += 1
        self._num_added += 1
        return str(self._num_added - 1)

    def abort(self, request_id: str) -> bool:
        """Ends a request, and frees its memory at once; see `LLM.abort`."""
        answers = list(self._processors_by_request.get(request_id, []))
        for answer in answers:
            self._finish(answer, [], "abort")
        return bool(answers)

    def precompute(self, token_ids: Sequence[int]) -> bool:
        """Computes the next page of a prompt that may come; see `LLM.precompute`."""
        scheduler = self.scheduler
        size = scheduler.config.page_size
        known = scheduler.pages.num_cached(token_ids)
        end = (known + 1) * size
        if scheduler.has_requests or end > len(token_ids):
            return False
        totals = scheduler.num_prompt_tokens, scheduler.num_cached_tokens
        request = EngineRequest(
            PRECOMPUTE_REQUEST_ID, token_ids[:end], SamplingParams(temperature=0), 1
        )
        try:
            scheduler.add(request)
            step = scheduler.schedule()
            if step.chunks:
                scheduler.update_from_output(step, self.runner.run(step))
        except UserError:  # it is too long, as what comes next will be
            return False
        except Exception:  # of any kind: nobody waits for this
            log.exception("a page could not be computed ahead")
        scheduler.finish(request, "abort")
        scheduler.num_prompt_tokens, scheduler.num_cached_tokens = totals  # nobody has asked for it
        return scheduler.pages.num_cached(token_ids) > known and end + size <= len(token_ids)

    def step(self) -> None:
        """Ends requests that are late, computes one step and sends its news."""
        self._expire_requests()
        if not self.scheduler.has_requests:
            return
        started = time.perf_counter()
        step = self.scheduler.schedule()
        for chunk in step.chunks:
            metrics = self._processors[chunk.request.request_id].request_output.metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = started
        try:
            self._process_outputs(step, self.runner.run(step))
        except Exception as error:  # of any kind: it ends the requests of this step, and no others
            self._fail_step(step, error)
        self.step_seconds += time.perf_counter() - started

    def _expire_requests(self) -> None:
        """Ends the requests whose time is up, wherever they are."""
        now = time.perf_counter()
        for answer in list(self._processors.values()):
            if answer.deadline is not None and now >= answer.deadline:
                self._finish(answer, [], "timeout")

    def _process_outputs(self, step: SchedulerOutput, results: dict[str, ChunkOutput]) -> None:
        """Gives the new tokens to the answers and to the scheduler."""
        news = []
        for name, result in results.items():
            answer = self._processors[name]
            if result.error is not None:
                self._finish(answer, [], "error", result.error)
                continue
            if result.prompt_logprobs:
                answer.append_prompt_logprobs(result.prompt_logprobs)
            if not result.token_ids:
                continue
            taken, reason = answer.process(result)
            refusal = (
                None
                if answer.request.grammar is None
                else answer.request.grammar.accept_tokens(taken)
            )
            if refusal is not None:
                self._finish(answer, [], "error", refusal)
                continue
            if len(taken) < len(result.token_ids):  # the answer has ended before the last
                results[name] = replace(result, token_ids=taken)
            news.append((answer, taken, reason))
        self.scheduler.update_from_output(step, results)
        for answer, taken, reason in news:
            if answer.output.index == 0:  # the other answers find what the first has computed
                answer.request_output.num_cached_tokens = answer.request.num_cached_tokens
            if reason is None:
                answer.request.draft_token_ids = self._propose_draft_tokens(answer.request)
                answer.emit(taken, None)
            else:
                self._finish(answer, taken, reason)

    def _propose_draft_tokens(self, request: EngineRequest) -> Sequence[int]:
        """The next tokens of an answer, as the first source that has any guesses them."""
        num_running = len(self.scheduler.running)
        proposals = (source.propose(request, num_running) for source in self._proposers)
        return next(filter(len, proposals), ())

    def _fail_step(self, step: SchedulerOutput, error: Exception) -> None:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        for chunk in step.chunks:
            answer = self._processors.get(chunk.request.request_id)
            if answer is not None:
                self._finish(answer, [], "error", f"the step failed: {reason}.")

    def _finish(
        self,
        answer: OutputProcessor,
        token_ids: Sequence[int],
        reason: FinishReason,
        error: str | None = None,
    ) -> None:
        request, name = answer.request, answer.request_output.request_id
        self.scheduler.finish(request, reason, error)
        answer.request_output.error = answer.request_output.error or error
        answer.emit(token_ids, reason)
        del self._processors[request.request_id]
        self._processors_by_request[name].remove(answer)
        if not self._processors_by_request[name]:
            del self._processors_by_request[name]
