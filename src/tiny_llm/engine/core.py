"""The engine's core: requests in, news of their answers out, a step at a time.

A step is three calls: the scheduler says what is computed, the runner computes it, and what came of
it goes to the answers and back to the scheduler. Knows nothing of where models come from.
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from ..errors import UserError
from . import prompts as prompt_forms
from .answer import Answer
from .outputs import CompletionOutput, RequestMetrics, RequestOutput, StreamOutput
from .prompts import Prompt
from .request import FinishReason, Request
from .runner import ChunkOutput, Runner
from .sampling import RequestSampling, answer_seed
from .sampling_params import SamplingParams, as_plain
from .scheduler import Scheduler
from .step import ChunkResult, Step


class EngineCore:
    """Requests on their way through scheduler and runner.

    Args:
        tokenizer: as `mlx_lm.load` returns it.
        scheduler: who runs, who waits, who has which pages.
        runner: the models.
        seed: of requests that have none.

    Attributes:
        vocab_size: V of the model that answers.
        step_seconds: time spent in steps; what is not in `runner.seconds` is bookkeeping.
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
        """Adds the `n` requests of a prompt, all of them or none; see `LLM.add_request`.

        Args:
            sink: where news of them go.
        """
        prompt = as_plain(prompt)
        ids = prompt_forms.encode(self.tokenizer, prompt, enable_thinking)
        self._check(ids, params)
        made_up = self.new_id()
        name = made_up if request_id is None else request_id
        own_ids = [name if params.n == 1 else f"{name}#{index}" for index in range(params.n)]
        if name in self._groups or any(own_id in self._answers for own_id in own_ids):
            raise UserError(f"request_id '{name}' is taken by a request that is not finished.")
        seed = params.seed if params.seed is not None else answer_seed(self.seed, int(made_up))
        whole = RequestOutput(
            name,
            None if prompt_forms.is_token_ids(prompt) else prompt,  # type: ignore[arg-type]
            ids,
            [CompletionOutput(index) for index in range(params.n)],
            RequestMetrics(time.perf_counter()),
        )
        answers = []
        for index, own_id in enumerate(own_ids):
            request = Request(own_id, ids, params, params.max_tokens, index)
            sampling = RequestSampling(params, answer_seed(seed, index), ids, self.vocab_size)
            answers.append(Answer.begin(request, sampling, self.tokenizer, whole, sink))
            self.scheduler.add(request)  # refuses the first, or none
            self._answers[own_id] = answers[-1]
        self._groups[name] = answers
        return whole

    def _check(self, ids: Sequence[int], params: SamplingParams) -> None:
        """Refuses tokens that the model does not have."""
        for what, tokens in (("the prompt", ids), ("logit_bias", params.logit_bias or ())):
            for token in tokens:
                if not 0 <= token < self.vocab_size:
                    raise UserError(
                        f"{what} has the token {token}; the model's are 0 to {self.vocab_size - 1}."
                    )

    def new_id(self) -> str:
        """An id that no other request has: a number that goes up."""
        while str(self._num_added) in self._groups:  # a caller's own choice
            self._num_added += 1
        self._num_added += 1
        return str(self._num_added - 1)

    def abort(self, request_id: str) -> bool:
        """Ends a request, wherever it is, and frees its memory at once.

        What it has said so far comes from the next `step` with finish_reason "abort".

        Returns:
            False if there is no such request, or it is finished.
        """
        answers = list(self._groups.get(request_id, []))
        for answer in answers:
            self._end(answer, [], "abort")
        return bool(answers)

    def advance(self) -> None:
        """One step: schedule, run, and hand on; no effect without requests."""
        if not self.scheduler.has_requests:
            return
        started = time.perf_counter()
        step = self.scheduler.schedule()
        for chunk in step.chunks:
            metrics = self._answers[chunk.request.request_id].whole.metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = started
        try:
            names = [chunk.request.request_id for chunk in step.chunks]
            samplings = {name: self._answers[name].sampling for name in names}
            self._hand_on(step, self.runner.run(step, samplings))
        except Exception as error:
            # Whatever it is, it is these requests' end and nobody else's.
            self._fail(step, error)
        self.step_seconds += time.perf_counter() - started

    def _hand_on(self, step: Step, outputs: dict[str, ChunkOutput]) -> None:
        """Gives the new tokens to the answers and to the scheduler, and ends what has ended."""
        results, news = {}, []
        for name, output in outputs.items():
            answer = self._answers[name]
            taken, reason = answer.take(output.token_ids, output.logprobs)
            results[name] = ChunkResult(taken, output.num_unguessed)
            news.append((answer, taken, reason))
        self.scheduler.commit(step, results)
        for answer, taken, reason in news:
            if answer.request.index == 0:  # the others find what the first has computed
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
