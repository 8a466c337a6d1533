"""The answers and news that a caller gets back: plain data."""

from dataclasses import dataclass, field
from typing import Any

from .request import FinishReason

# For one place in an answer: log-probabilities by token id, of the likeliest tokens and its own.
Logprobs = dict[int, float]


@dataclass
class RequestMetrics:
    """When things happened to a request, in seconds on the clock of `time.perf_counter`.

    Attributes:
        arrival_time: when it was added.
        first_scheduled_time: when the first step that computed some of it began.
        first_token_time: when the first token of an answer was chosen.
        finished_time: when the last answer ended.
        num_preemptions: how often it gave up its pages.
        num_generation_tokens: tokens of the completion that finished last.
    """

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0
    num_generation_tokens: int = 0

    @property
    def ttft(self) -> float | None:
        """Seconds from its arrival to the first token, the time in the queue included."""
        if self.first_token_time is None:
            return None
        return self.first_token_time - self.arrival_time

    @property
    def queue_seconds(self) -> float | None:
        """Seconds in the queue."""
        if self.first_scheduled_time is None:
            return None
        return self.first_scheduled_time - self.arrival_time

    @property
    def e2e_seconds(self) -> float | None:
        """Seconds from arrival to the end of the last completion."""
        if self.finished_time is None:
            return None
        return self.finished_time - self.arrival_time


@dataclass
class CompletionOutput:
    """One answer.

    Attributes:
        index: which of the prompt's `n`.
        text: the answer so far, without end token and stop string.
        token_ids: its tokens, the end token included.
        finish_reason: "stop" (an end token or a stop string), "length", "timeout", "abort" or
            "error"; None until the answer ends.
        stop_reason: the token or the string that stopped it; None for the tokenizer's end tokens.
        logprobs: one for each token, if `SamplingParams.logprobs` was given.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: list[Logprobs] | None = None


@dataclass
class RequestOutput:
    """A prompt and its answers.

    `text`, `token_ids`, `finish_reason` and `logprobs` are those of the first answer.

    Attributes:
        request_id: as given, or as `add_request` made it.
        prompt: the text or the messages of the chat; None for token ids.
        prompt_token_ids: the prompt's tokens; empty if it could not be encoded.
        outputs: the `n` answers.
        metrics: when things happened.
        num_cached_tokens: tokens of the prompt that were found in the prefix cache.
        prompt_logprobs: for each token of the prompt, if `SamplingParams.prompt_logprobs` was
            given; None for the first. They are complete when the first answer's first token comes.
        error: a sentence that says why the request failed or was refused.
    """

    request_id: str
    prompt: str | list[dict[str, Any]] | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics
    num_cached_tokens: int = 0
    prompt_logprobs: list[Logprobs | None] | None = None
    error: str | None = None

    @property
    def finished(self) -> bool:
        """Whether every answer has ended."""
        return all(output.finish_reason is not None for output in self.outputs)

    @property
    def text(self) -> str:
        """The first answer's text."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        """The first answer's tokens."""
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the first answer ended."""
        return self.outputs[0].finish_reason

    @property
    def logprobs(self) -> list[Logprobs] | None:
        """The first answer's log-probabilities."""
        return self.outputs[0].logprobs


@dataclass(slots=True)  # not frozen: one per token, and creation is five times as fast
class StreamOutput:
    """One step's additions to one completion. Treated as immutable.

    Attributes:
        request_id: the request.
        index: the completion's index among the request's `n`.
        text: new text. Concatenated, these texts are the completion's text.
        token_ids: new tokens: one, or several after accepted draft tokens; empty after an abort.
        finish_reason: None until the completion ends.
        request_output: the request with all its completions; the same object each time. The
            engine's thread updates it.
        num_cached_tokens: prompt tokens found in the prefix cache.
        stop_reason: see `CompletionOutput`.
        logprobs: one entry per new token, if requested.
        prompt_logprobs: with completion 0's first tokens, if requested; see `RequestOutput`.
        is_first: whether the completion begins with this output.
        metrics: the request's metrics, with the end of its last completion.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    request_output: RequestOutput
    num_cached_tokens: int = 0
    stop_reason: int | str | None = None
    logprobs: list[Logprobs] | None = None
    prompt_logprobs: list[Logprobs | None] | None = None
    is_first: bool = False
    metrics: RequestMetrics | None = None

    @property
    def is_urgent(self) -> bool:
        """Whether delivery must not be delayed: a completion's first tokens, or its end."""
        return self.is_first or self.finish_reason is not None
