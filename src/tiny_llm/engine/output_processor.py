"""OutputProcessor: stop conditions, text and stream outputs of a completion."""

import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from .scheduling.outputs import ChunkOutput, CompletionOutput, Logprobs, RequestOutput, StreamOutput
from .scheduling.request import EngineRequest, FinishReason
from .stop_checker import ReasoningTokens, StopChecker


class OutputProcessor:
    """Converts a request's tokens to the caller's output.

    Args:
        request: the scheduler's request.
        request_output: the prompt with all its completions.
        output: this completion, one of `request_output.outputs`.
        detokenizer: a fresh detokenizer.
        eos_token_ids: the tokenizer's EOS tokens.
        sink: receives the stream outputs.
        deadline: `time.perf_counter` value at which the request times out, or None.
        reasoning: see `StopChecker`.

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
        reasoning: ReasoningTokens | None = None,
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
            reasoning,
        )
        self._end_token_ids = () if params.ignore_eos else eos_token_ids
        self._sink = sink
        self._step_logprobs: list[Logprobs] | None = None  # from the last `process` call

    def process(self, result: ChunkOutput) -> tuple[list[int], FinishReason | None]:
        """Appends tokens to the output, up to and including the one that ends the completion.

        Returns:
            (appended tokens, finish reason or None).
        """
        assert self.request.max_tokens is not None
        num_left = self.request.max_tokens - self.request.num_output_tokens
        token_ids: list[int] = []
        reason: FinishReason | None = None
        for token in result.token_ids:
            token_ids.append(token)
            reason = self._finish_reason(token)
            if reason is None and len(token_ids) >= num_left:
                reason = "length"
            if reason is not None:
                break
        self.output.token_ids += token_ids
        if result.pooled is not None:
            self.output.pooled = list(result.pooled)
        if result.logprobs is not None:
            self._step_logprobs = list(result.logprobs[: len(token_ids)])
            self.output.logprobs = self.output.logprobs or []
            self.output.logprobs += self._step_logprobs
        return token_ids, reason

    def append_prompt_logprobs(self, logprobs: Sequence[Logprobs]) -> None:
        """Appends the log-probabilities of the prompt's next tokens."""
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
        """Emits a stream output with the new tokens and, at the end, the finish reason."""
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
        request_output, output = self.request_output, self.output
        self._sink.append(
            StreamOutput(
                request_output.request_id,
                output.index,
                self._text.take_text(),
                tuple(token_ids),
                reason,
                request_output,
                request_output.num_cached_tokens,
                output.stop_reason,
                self._step_logprobs if token_ids else None,
                request_output.prompt_logprobs if is_first and output.index == 0 else None,
                is_first,
                metrics if request_output.finished else None,
                output.pooled,
            )
        )
