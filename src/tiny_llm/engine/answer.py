"""One answer while it is generated: its tokens go to the caller, until one of them ends it."""

import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

from .outputs import CompletionOutput, Logprobs, RequestOutput, StreamOutput
from .request import EngineRequest, FinishReason
from .step import ChunkResult
from .stop_strings import AnswerText


class Answer:
    """Connects a request inside the engine with the output that its caller sees.

    Args:
        request: the scheduler's side.
        whole: the prompt with all its answers, the caller's side.
        output: the one of `whole.outputs` that this is.
        detokenizer: a fresh one.
        eos_token_ids: the tokenizer's end tokens.
        sink: where news of the answer go.
        deadline: when it ends at the latest, on the clock of `time.perf_counter`; None for never.

    Attributes:
        request, whole, output, deadline: as given.
    """

    def __init__(
        self,
        request: EngineRequest,
        whole: RequestOutput,
        output: CompletionOutput,
        detokenizer: Any,
        eos_token_ids: Collection[int],
        sink: deque[StreamOutput],
        deadline: float | None = None,
    ):
        self.request = request
        self.whole = whole
        self.output = output
        self.deadline = deadline
        params = request.params
        self._text = AnswerText(
            output,
            detokenizer,
            params.stop_strings,
            params.min_tokens,
            params.include_stop_str_in_output,
        )
        self._end_token_ids = () if params.ignore_eos else eos_token_ids
        request.end_token_ids = (*self._end_token_ids, *(params.stop_token_ids or ()))
        self._sink = sink

    def take(self, result: ChunkResult) -> tuple[list[int], FinishReason | None]:
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
            reason = self._reason_to_end(token)
            if reason is None and len(taken) >= room:
                reason = "length"
            if reason is not None:
                break
        self.output.token_ids += taken
        if result.logprobs is not None:
            self.output.logprobs = self.output.logprobs or []
            self.output.logprobs += result.logprobs[: len(taken)]
        return taken, reason

    def take_prompt_logprobs(self, logprobs: Sequence[Logprobs]) -> None:
        """Adds the log-probabilities of the prompt's next tokens to the output."""
        assert self.whole.prompt_logprobs is not None
        self.whole.prompt_logprobs += logprobs

    def _reason_to_end(self, token: int) -> FinishReason | None:
        if token in self._end_token_ids:
            return "stop"
        if token in (self.request.params.stop_token_ids or ()):
            self.output.stop_reason = token
            return "stop"
        return "stop" if self._text.add_token(token) else None

    def tell(self, token_ids: Sequence[int], reason: FinishReason | None) -> None:
        """Sends the new tokens and their text, and why the answer ends, if it does."""
        metrics, now = self.whole.metrics, time.perf_counter()
        if token_ids and metrics.first_token_time is None:
            metrics.first_token_time = now
        if reason is not None:
            self._text.finish()
            self.output.finish_reason = reason
            metrics.num_preemptions += self.request.num_preemptions
            if self.whole.finished:
                metrics.finished_time = now
        text = self._text.take_new()
        index, request_id = self.output.index, self.whole.request_id
        news = StreamOutput(request_id, index, text, tuple(token_ids), reason, self.whole)
        self._sink.append(news)
