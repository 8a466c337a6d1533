"""Output dataclasses of the scheduler, the model runner and the engine."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .request import EngineRequest, FinishReason

# Log-probabilities at one position, by token id: top tokens and the sampled or prompt token.
Logprobs = dict[int, float]


@dataclass(frozen=True)
class Chunk:
    """Tokens [start, end) of a request, followed by `num_drafts` draft tokens.

    Attributes:
        samples: whether the chunk reaches the end of the request's tokens and samples the next one.
        state_read_slot: slot of the recurrent state before the chunk; −1 for zeros.
        draft_state_read_slot: slot of the draft model's state before its chunk, which starts
            `num_draft_uncomputed` tokens earlier.
        state_writes: (index, slot) pairs: `slot` receives the state after the chunk's token
            `index`, which may be a draft token.
    """

    request: EngineRequest
    start: int
    end: int
    num_drafts: int
    samples: bool
    state_read_slot: int = -1
    draft_state_read_slot: int = -1
    state_writes: tuple[tuple[int, int], ...] = ()

    @property
    def num_tokens(self) -> int:
        """Number of tokens, draft tokens included: the chunk's share of the token budget."""
        return self.end - self.start + self.num_drafts


@dataclass(frozen=True)
class SchedulerOutput:
    """The chunks of one step.

    Attributes:
        index: step number, from 0.
        chunks: at most one per request, at least one token each.
    """

    index: int
    chunks: tuple[Chunk, ...]

    @property
    def num_tokens(self) -> int:
        """Number of tokens, draft tokens included; at most `max_num_batched_tokens`."""
        return sum(chunk.num_tokens for chunk in self.chunks)


@dataclass(frozen=True)
class ChunkOutput:
    """Result of a chunk that samples a token or scores prompt tokens.

    Attributes:
        token_ids: accepted draft tokens plus one sampled token; empty if the chunk does not sample
            or failed.
        num_draft_uncomputed: see `EngineRequest`. Pages are shared only once both models have
            written them.
        logprobs: one entry per token, if requested.
        prompt_logprobs: one entry per newly scored prompt token, starting at `num_scored`.
        pooled: embedding or score, from a pooling model.
        error: message if the request failed, else None.
    """

    token_ids: Sequence[int]
    num_draft_uncomputed: int = 0
    logprobs: Sequence[Logprobs] | None = None
    prompt_logprobs: Sequence[Logprobs] = ()
    pooled: Sequence[float] | None = None
    error: str | None = None


@dataclass
class RequestMetrics:
    """A request's timestamps (`time.perf_counter`, in seconds), preemptions and output tokens.

    Attributes:
        arrival_time: when the request was added.
        first_scheduled_time: start of the first step that included the request.
        first_token_time: when the first output token was sampled.
        finished_time: end of the last completion.
        num_preemptions: number of preemptions.
        num_generation_tokens: output tokens of the last completion to finish.
    """

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0
    num_generation_tokens: int = 0

    @property
    def ttft(self) -> float | None:
        """Time to first token in seconds, queueing included."""
        return self._since_arrival(self.first_token_time)

    @property
    def queue_seconds(self) -> float | None:
        """Seconds from arrival to the first scheduled step."""
        return self._since_arrival(self.first_scheduled_time)

    @property
    def e2e_seconds(self) -> float | None:
        """Seconds from arrival to the end of the last completion."""
        return self._since_arrival(self.finished_time)

    def _since_arrival(self, time: float | None) -> float | None:
        return None if time is None else time - self.arrival_time


@dataclass
class CompletionOutput:
    """One completion.

    Attributes:
        index: index among the prompt's `n` completions.
        text: text so far, without the EOS token or stop string.
        token_ids: tokens so far, including the EOS token.
        finish_reason: "stop" (EOS, stop token or string), "length", "timeout", "abort" or "error";
            None until the completion ends.
        stop_reason: the matched stop token or stop string; None for the tokenizer's EOS tokens.
        logprobs: one entry per token, if `SamplingParams.logprobs` was given.
        pooled: embedding or score, from a pooling model.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    logprobs: list[Logprobs] | None = None
    pooled: list[float] | None = None


@dataclass
class RequestOutput:
    """A prompt and its completions.

    `text`, `token_ids`, `finish_reason` and `logprobs` are those of the first completion.

    Attributes:
        request_id: the caller's id, or the one generated by `add_request`.
        prompt: the caller's text or chat messages; None for a prompt of token ids.
        prompt_token_ids: the prompt's tokens; empty if encoding failed.
        outputs: the `n` completions.
        metrics: timestamps, and numbers of preemptions and output tokens.
        num_cached_tokens: prompt tokens found in the prefix cache.
        prompt_logprobs: one entry per prompt token, None for the first, if
            `SamplingParams.prompt_logprobs` was given. Complete once the first completion has a
            token.
        error: message if the request failed or was rejected, else None.
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
        """Whether every completion has ended."""
        return all(output.finish_reason is not None for output in self.outputs)

    @property
    def text(self) -> str:
        """Text of the first completion."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        """Tokens of the first completion."""
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        """Finish reason of the first completion."""
        return self.outputs[0].finish_reason

    @property
    def logprobs(self) -> list[Logprobs] | None:
        """Log-probabilities of the first completion."""
        return self.outputs[0].logprobs


@dataclass(slots=True)  # created per token; if frozen, construction would take 5 times as long
class StreamOutput:
    """One step's additions to one completion. Treated as immutable.

    Attributes:
        request_id: id of the request.
        index: the completion's index among the request's `n`.
        text: new text; concatenating it over all outputs yields the completion's text.
        token_ids: new tokens: one, or several after accepted draft tokens; empty after an abort.
        finish_reason: None until the completion ends.
        request_output: the request with all its completions; always the same object, updated by
            the engine thread.
        num_cached_tokens: prompt tokens found in the prefix cache.
        stop_reason: see `CompletionOutput`.
        logprobs: one entry per new token, if requested.
        prompt_logprobs: if requested, with completion 0's first tokens; see `RequestOutput`.
        is_first: whether this is the completion's first output.
        metrics: the request's metrics, set when its last completion ends.
        pooled: see `CompletionOutput`.
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
    pooled: list[float] | None = None

    @property
    def is_urgent(self) -> bool:
        """Whether to deliver without delay: a completion's first tokens, or its end."""
        return self.is_first or self.finish_reason is not None
