"""OutputProcessor: stop conditions, text and stream outputs of a completion.

Holds back text that may still change: partial characters and possible prefixes of a stop string.
Emitted text is therefore final. This module must not import MLX.
"""

import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..scheduling.request import (
    ChunkOutput,
    CompletionOutput,
    EngineRequest,
    FinishReason,
    Logprobs,
    RequestOutput,
    StreamOutput,
)


@dataclass(frozen=True)
class ReasoningTokens:
    """Token ids of the delimiters `<think>` and `</think>` of a reasoning block."""

    start: int
    end: int
    is_open: bool  # whether the output starts inside a reasoning block


class StopChecker:
    """Detokenizes one completion until a stop string occurs.

    Args:
        output: receives `text` and, on a match, `stop_reason`.
        detokenizer: a new streaming detokenizer with `mlx_lm`'s interface.
        stop_strings: strings that end the text; the earliest match wins.
        min_tokens: stop strings that start within the first `min_tokens` tokens are ignored.
        include_stop_str: whether the text includes the stop string.
        reasoning: delimiters of reasoning, where stop strings are ignored; None if disabled.
    """

    def __init__(
        self,
        output: CompletionOutput,
        detokenizer: Any,
        stop_strings: Sequence[str],
        min_tokens: int = 0,
        include_stop_str: bool = False,
        reasoning: ReasoningTokens | None = None,
    ):
        self._output = output
        self._detokenizer = detokenizer
        self._stop_strings = stop_strings
        self._include_stop_str = include_stop_str
        self._longest = max(map(len, stop_strings), default=0)
        self._buffer = ""  # decoded text not yet in `output.text`
        self._num_unchecked = 0  # leading characters of `_buffer` exempt from stop strings
        self._num_min_tokens_left = min_tokens  # number of next tokens exempt from stop strings
        self._reasoning = reasoning
        self._in_reasoning = reasoning is not None and reasoning.is_open
        self._is_last_exempt = self._in_reasoning
        self._finished = False

    def add_token(self, token: int) -> bool:
        """Appends a token; returns whether it completes a stop string."""
        is_exempt = self._is_reasoning(token) or self._num_min_tokens_left > 0
        self._detokenizer.add_token(token)
        stop_string = self._append(self._detokenizer.last_segment, is_exempt)
        self._num_min_tokens_left = max(0, self._num_min_tokens_left - 1)
        if is_exempt:
            self._num_unchecked = len(self._buffer)
        self._is_last_exempt = is_exempt
        if stop_string is not None:
            self._output.stop_reason = stop_string
        return stop_string is not None

    def finish(self) -> str | None:
        """Ends the completion, so that `take_text` returns all held-back text.

        Returns the stop string that this text completes, if it does; the text is cut at it.
        """
        if self._finished:
            return None
        self._detokenizer.finalize()
        stop_string = self._append(self._detokenizer.last_segment, self._is_last_exempt)
        self._finished = True
        return stop_string

    def take_text(self) -> str:
        """Moves the buffer's emittable prefix to the output and returns it."""
        end = len(self._buffer) if self._finished else self._num_emittable()
        new, self._buffer = self._buffer[:end], self._buffer[end:]
        self._num_unchecked = max(0, self._num_unchecked - end)
        self._output.text += new
        return new

    def _is_reasoning(self, token: int) -> bool:
        """Whether the output's next token is reasoning or one of its delimiters."""
        if self._reasoning is None:
            return False
        if self._in_reasoning:
            self._in_reasoning = token != self._reasoning.end
            return True
        # `<think>` is a delimiter only at the start of the output.
        if token == self._reasoning.start and not (self._output.text + self._buffer).strip():
            self._in_reasoning = True
        return self._in_reasoning

    def _append(self, text: str, is_exempt: bool) -> str | None:
        """Appends text, cut at a stop string unless exempt; returns the stop string."""
        self._buffer += text
        if is_exempt:
            return None
        candidates = [
            (self._buffer.find(stop, self._num_unchecked), stop) for stop in self._stop_strings
        ]
        matches = [(start, stop) for start, stop in candidates if start >= 0]
        if not matches:
            return None
        start, stop_string = min(matches)
        self._buffer = self._buffer[: start + len(stop_string) * self._include_stop_str]
        self._finished = True
        return stop_string

    def _num_emittable(self) -> int:
        """Number of leading characters that no stop string can match later."""
        first = max(self._num_unchecked, len(self._buffer) - self._longest + 1)
        for start in range(first, len(self._buffer)):
            if any(stop.startswith(self._buffer[start:]) for stop in self._stop_strings):
                return start
        return len(self._buffer)


class OutputProcessor:
    """Converts a request's tokens to the caller's output.

    Args:
        output: this completion, one of `request_output.outputs`.
        deadline: `time.perf_counter` value at which the request times out, or None.
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
        self.sink = sink
        self._step_logprobs: tuple[Logprobs, ...] | None = None  # from the last call of `process`

    def process(self, result: ChunkOutput) -> tuple[list[int], FinishReason | None]:
        """Appends a step's results to the output, up to the token that ends it."""
        assert self.request.max_tokens is not None
        num_left = self.request.max_tokens - self.request.num_output_tokens
        token_ids: list[int] = []
        reason: FinishReason | None = None
        for token in result.token_ids:
            token_ids.append(token)
            reason = self._finish_reason(token)
            if reason is None and len(token_ids) >= num_left:
                self.output.stop_reason = self._text.finish()
                reason = "length" if self.output.stop_reason is None else "stop"
            if reason is not None:
                break
        self.output.token_ids += token_ids
        if result.prompt_logprobs:
            assert self.request_output.prompt_logprobs is not None
            self.request_output.prompt_logprobs += result.prompt_logprobs
        if result.pooled is not None:
            self.output.pooled = list(result.pooled)
        if result.logprobs is not None:
            self._step_logprobs = tuple(result.logprobs[: len(token_ids)])
            self.output.logprobs = self.output.logprobs or []
            self.output.logprobs += self._step_logprobs
        return token_ids, reason

    def _finish_reason(self, token: int) -> FinishReason | None:
        if token in self._end_token_ids:
            return "stop"
        if token in (self.request.params.stop_token_ids or ()):
            self.output.stop_reason = token
            return "stop"
        return "stop" if self._text.add_token(token) else None

    def emit(self, token_ids: Sequence[int], reason: FinishReason | None) -> None:
        request_output, output, now = self.request_output, self.output, time.perf_counter()
        metrics = request_output.metrics
        if token_ids and metrics.first_token_time is None:
            request_output.metrics = metrics = replace(metrics, first_token_time=now)
        if reason is not None:
            self._text.finish()
            output.finish_reason = reason
            num_preemptions = metrics.num_preemptions + self.request.num_preemptions
            metrics = replace(metrics, num_preemptions=num_preemptions)
            if request_output.finished:
                num_tokens = len(output.token_ids)
                metrics = replace(metrics, finished_time=now, num_generation_tokens=num_tokens)
            request_output.metrics = metrics
        is_first = 0 < len(token_ids) == len(output.token_ids)
        prompt_logprobs = None
        if is_first and output.index == 0 and request_output.prompt_logprobs is not None:
            prompt_logprobs = tuple(request_output.prompt_logprobs)
        self.sink.append(
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
                prompt_logprobs,
                is_first,
                metrics if request_output.finished else None,
                None if output.pooled is None else tuple(output.pooled),
                request_output.error if reason == "error" else None,
            )
        )
