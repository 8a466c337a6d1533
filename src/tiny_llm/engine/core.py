"""The engine's core: requests in, news of their answers out, a step at a time.

A step is three calls: the scheduler plans it, the runner computes it, and the new tokens go to the
answers and back to the scheduler. This file does not know where models come from.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..errors import UserError, check_token_ids
from . import prompt_forms
from .answer import Answer
from .checks import as_plain
from .choose_tokens import TokenCounts, answer_seed
from .outputs import CompletionOutput, RequestMetrics, RequestOutput, StreamOutput
from .prompt_forms import Prompt
from .request import EngineRequest, FinishReason
from .runner import Runner
from .sampling_params import SamplingParams
from .scheduler import Scheduler
from .step import ChunkResult, Step


class EngineCore:
    """Takes requests through scheduler and runner.

    Args:
        tokenizer: as `mlx_lm.load` returns it.
        scheduler: plans the steps.
        runner: computes them.
        seed: for requests that have none.

    Attributes:
        tokenizer, scheduler, runner, seed: as given.
        vocab_size: V of the model that answers.
        step_seconds: time spent in steps; `runner.seconds` of it were not bookkeeping.
    """

    def __init__(self, tokenizer: Any, scheduler: Scheduler, runner: Runner, seed: int):
        self.tokenizer = tokenizer
        self.scheduler = scheduler
        self.runner = runner
        self.seed = seed
        self.vocab_size = runner.target.vocab_size
        self.step_seconds = 0.0
        self._answers: dict[str, Answer] = {}  # by the id of the scheduler's request
        self._groups: dict[str, list[Answer]] = {}  # by the id of the caller's request
        self._num_added = 0

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str | None,
        enable_thinking: bool,
        sink: deque[StreamOutput],
    ) -> RequestOutput:
        """Adds the `n` requests of a prompt, or none of them if one is refused.

        Args:
            prompt, params, request_id, enable_thinking: see `LLM.add_request`, errors too.
            sink: where news of the answers go.
        """
        prompt = as_plain(prompt)
        ids = prompt_forms.encode(self.tokenizer, prompt, enable_thinking)
        check_token_ids("the prompt", ids, self.vocab_size)
        check_token_ids("logit_bias", params.logit_bias or (), self.vocab_size)
        own_name = self.new_id()
        name = own_name if request_id is None else request_id
        own_ids = [name if params.n == 1 else f"{name}#{index}" for index in range(params.n)]
        if name in self._groups or any(own_id in self._answers for own_id in own_ids):
            raise UserError(f"request_id '{name}' is taken by a request that is not finished.")
        seed = params.seed if params.seed is not None else answer_seed(self.seed, int(own_name))
        whole = RequestOutput(
            name,
            None if prompt_forms.is_token_ids(prompt) else prompt,  # type: ignore[arg-type]
            ids,
            [CompletionOutput(index) for index in range(params.n)],
            RequestMetrics(time.perf_counter()),
        )
        answers = []
        for own_id, output in zip(own_ids, whole.outputs, strict=True):
            own_seed = answer_seed(seed, output.index)
            request = EngineRequest(own_id, ids, params, params.max_tokens, own_seed)
            if params.has_penalties:
                request.token_counts = TokenCounts(request, self.vocab_size)
            answers.append(Answer(request, whole, output, self.tokenizer, sink))
            self.scheduler.add(request)  # refuses the first, or none
            self._answers[own_id] = answers[-1]
        self._groups[name] = answers
        return whole

    def new_id(self) -> str:
        """An id that no other request has: the next number."""
        while str(self._num_added) in self._groups:  # a caller chose it
            self._num_added += 1
        self._num_added += 1
        return str(self._num_added - 1)

    def abort(self, request_id: str) -> bool:
        """Ends a request, and frees its memory at once; see `LLM.abort`."""
        answers = list(self._groups.get(request_id, []))
        for answer in answers:
            self._end(answer, [], "abort")
        return bool(answers)

    def advance(self) -> None:
        """Computes one step and sends its news; no effect without requests."""
        if not self.scheduler.has_requests:
            return
        started = time.perf_counter()
        step = self.scheduler.schedule()
        for chunk in step.chunks:
            metrics = self._answers[chunk.request.request_id].whole.metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = started
        try:
            self._hand_on(step, self.runner.run(step))
        except Exception as error:  # of any kind: it ends the requests of this step, and no others
            self._fail(step, error)
        self.step_seconds += time.perf_counter() - started

    def _hand_on(self, step: Step, results: dict[str, ChunkResult]) -> None:
        """Gives the new tokens to the answers and to the scheduler."""
        news = []
        for name, result in results.items():
            answer = self._answers[name]
            taken, reason = answer.take(result)
            results[name] = replace(result, token_ids=taken)
            news.append((answer, taken, reason))
        self.scheduler.commit(step, results)
        for answer, taken, reason in news:
            if answer.output.index == 0:  # the other answers find what the first has computed
                answer.whole.num_cached_tokens = answer.request.num_cached_tokens
            if reason is None:
                answer.tell(taken, None)
            else:
                self._end(answer, taken, reason)

    def _fail(self, step: Step, error: Exception) -> None:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        for chunk in step.chunks:
            answer = self._answers.get(chunk.request.request_id)
            if answer is not None:
                self._end(answer, [], "error", f"the step failed: {reason}.")

    def _end(
        self,
        answer: Answer,
        token_ids: Sequence[int],
        reason: FinishReason,
        error: str | None = None,
    ) -> None:
        request, name = answer.request, answer.whole.request_id
        self.scheduler.finish(request, reason, error)
        answer.whole.error = answer.whole.error or error
        answer.tell(token_ids, reason)
        del self._answers[request.request_id]
        self._groups[name].remove(answer)
        if not self._groups[name]:
            del self._groups[name]
