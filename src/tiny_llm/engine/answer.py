"""One answer while it is being made: its request, its text, and when it ends."""

import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from .answer_text import AnswerText
from .outputs import CompletionOutput, Logprobs, RequestOutput, StreamOutput
from .request import FinishReason, Request
from .sampling import RequestSampling


@dataclass(eq=False)
class Answer:
    """What the engine keeps of one answer.

    Attributes:
        request: what the scheduler sees of it.
        sampling: what the sampler sees.
        text: its tokens as text.
        output: where it is written to.
        whole: the output of the prompt, with all its answers.
        sink: where news of it go.
        end_token_ids: the tokenizer's, if they count.
    """

    request: Request
    sampling: RequestSampling
    text: AnswerText
    output: CompletionOutput
    whole: RequestOutput
    sink: deque[StreamOutput] = field(repr=False)
    end_token_ids: Collection[int] = ()

    @classmethod
    def begin(
        cls,
        request: Request,
        sampling: RequestSampling,
        tokenizer: Any,
        whole: RequestOutput,
        sink: deque[StreamOutput],
    ) -> "Answer":
        """An answer without tokens."""
        params = request.params
        return cls(
            request,
            sampling,
            AnswerText(tokenizer.detokenizer, params.stop_strings),
            whole.outputs[request.index],
            whole,
            sink,
            () if params.ignore_eos else tokenizer.eos_token_ids,
        )

    def take(
        self, token_ids: Sequence[int], logprobs: Sequence[Logprobs] | None
    ) -> tuple[list[int], FinishReason | None]:
        """The answer goes on.

        Args:
            token_ids: its next tokens.
            logprobs: theirs, if the request wants them.

        Returns:
            (those of the tokens that belong to it, why it ends with the last of them or None).
        """
        assert self.request.max_tokens is not None
        taken: list[int] = []
        reason: FinishReason | None = None
        for token in token_ids:
            taken.append(token)
            reason = self._reason_to_end(token)
            if reason is None and (
                self.request.num_output_tokens + len(taken) >= self.request.max_tokens
            ):
                reason = "length"
            if reason is not None:
                break
        self.output.token_ids += taken
        if logprobs is not None:
            self.output.logprobs = self.output.logprobs or []
            self.output.logprobs += logprobs[: len(taken)]
        self.sampling.add(taken)
        return taken, reason

    def _reason_to_end(self, token: int) -> FinishReason | None:
        if token in self.end_token_ids:
            return "stop"
        if token in (self.request.params.stop_token_ids or ()):
            self.output.stop_reason = token
            return "stop"
        if self.text.add_token(token):
            self.output.stop_reason = self.text.stop_string
            return "stop"
        return None

    def tell(self, token_ids: Sequence[int], reason: FinishReason | None) -> None:
        """Hands on what is new."""
        metrics, now = self.whole.metrics, time.perf_counter()
        if token_ids and metrics.first_token_time is None:
            metrics.first_token_time = now
        if reason is not None:
            self.text.finish()
            self.output.text = self.text.text
            self.output.finish_reason = reason
            metrics.num_preemptions += self.request.num_preemptions
            if self.whole.finished:
                metrics.finished_time = now
        self.sink.append(
            StreamOutput(
                self.whole.request_id,
                self.output.index,
                self.text.take_new(),
                tuple(token_ids),
                reason,
                self.whole,
            )
        )
