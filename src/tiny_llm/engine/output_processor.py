"""One answer while it is generated: its tokens go to the caller, until one of them ends it."""

import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from .scheduling.batch import ChunkOutput
from .scheduling.outputs import CompletionOutput, Logprobs, RequestOutput, StreamOutput
from .scheduling.request import EngineRequest, FinishReason
from .stop_checker import StopChecker


class OutputProcessor:
    """Connects a request inside the engine with the output that its caller sees.

    Args:
        request: the scheduler's side.
        request_output: the prompt with all its completions, the caller's side.
        output: the one of `request_output.outputs` that this is.
        detokenizer: a fresh one.
        eos_token_ids: the tokenizer's end tokens.
        sink: where news of the answer go.
        deadline: when it ends at the latest, on the clock of `time.perf_counter`; None for never.

    Attributes:
        request, request_output, output, deadline: as given.
    """

    def __init__(
        self,
        request: EngineRequest,
        request_output: RequestOutput,
        output: CompletionOutput,
        detokenizer: Any,
        eos_token_ids: Collection[int],
        sink: deque[StreamOutput],
        deadline: float | None = None,
    ):
        self.request = request
        self.request_output = request_output
        self.output = output
        self.deadline = deadline
        params = request.params
        self._text = StopChecker(
            output,
            detokenizer,
            params.stop_strings,
            params.min_tokens,
            params.include_stop_str_in_output,
        )
        self._end_token_ids = () if params.ignore_eos else eos_token_ids
        request.end_token_ids = (*self._end_token_ids, *(params.stop_token_ids or ()))
        self._sink = sink
        self._step_logprobs: list[Logprobs] | None = None  # those of the last processed tokens

    def process(self, result: ChunkOutput) -> tuple[list[int], FinishReason | None]:
        """Adds tokens to the output, up to one that ends the answer.

        Returns:
            (the tokens that belong to the answer, why it ends with the last of them or None).
        """
        assert self.request.max_tokens is not None
        room = self.request.max_tokens - self.request.num_output_tokens
        taken: list[int] = []
        reason: FinishReason | None = None
        for token in result.token_ids:
            taken.append(token)
            reason = self._finish_reason(token)
            if reason is None and len(taken) >= room:
                reason = "length"
            if reason is not None:
                break
        self.output.token_ids += taken
        if result.logprobs is not None:
            self._step_logprobs = list(result.logprobs[: len(taken)])
            self.output.logprobs = self.output.logprobs or []
            self.output.logprobs += self._step_logprobs
        return taken, reason

    def append_prompt_logprobs(self, logprobs: Sequence[Logprobs]) -> None:
        """Adds the log-probabilities of the prompt's next tokens to the output."""
        assert self.request_output.prompt_logprobs is not None
        self.request_output.prompt_logprobs += logprobs

    def _finish_reason(self, token: int) -> FinishReason | None:
        if token in self._end_token_ids:
            return "stop"
        if token in (self.request.params.stop_token_ids or ()):
            self.output.stop_reason = token
            return "stop"
        return "stop" if self._text.add_token(token) else None

    def emit(self, token_ids: Sequence[int], reason: FinishReason | None) -> None:
        """Sends the new tokens and their text, and why the answer ends, if it does."""
        metrics, now = self.request_output.metrics, time.perf_counter()
        if token_ids and metrics.first_token_time is None:
            metrics.first_token_time = now
        if reason is not None:
            self._text.finish()
            self.output.finish_reason = reason
            metrics.num_preemptions += self.request.num_preemptions
            if self.request_output.finished:
                metrics.finished_time = now
                metrics.num_generation_tokens = len(self.output.token_ids)
        is_first = 0 < len(token_ids) == len(self.output.token_ids)
        whole, output = self.request_output, self.output
        self._sink.append(
            StreamOutput(
                whole.request_id,
                output.index,
                self._text.take_text(),
                tuple(token_ids),
                reason,
                whole,
                whole.num_cached_tokens,
                output.stop_reason,
                self._step_logprobs if token_ids else None,
                whole.prompt_logprobs if is_first and output.index == 0 else None,
                is_first,
                metrics if whole.finished else None,
            )
        )
