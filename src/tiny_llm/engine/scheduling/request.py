"""EngineRequest and the outputs of the scheduler, the model runner and the engine.

An `EngineRequest` holds the tokens and pages of one completion; `Chunk` and `SchedulerOutput` are
scheduled work, `ChunkOutput` is its result, and `RequestOutput` and `StreamOutput` are what callers
receive.

A prompt with `n` completions becomes `n` requests. A request's state is a set of half-open
intervals over its tokens:

    token_ids   [0, num_prompt_tokens)             the prompt
                [num_prompt_tokens, num_tokens)    the output so far

    keys and    [0, num_computed)                  are in the pages
    values      [num_computed, num_tokens)         to be computed: prompt chunks, or the one token
                                                   sampled last

    page_ids    page i holds tokens [i · page_size, (i + 1) · page_size) of this request;
                [0, num_shared)                    full, final, and in the prefix cache
                [num_shared, len(page_ids))        owned by this request alone

With several KV cache groups or a sliding window, block i has several pages or none, of which each
group has [num_freed, num_allocated) (`kv_cache_groups.py`).
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from ...errors import UserError, short_repr
from ..inputs.sampling_params import SamplingParams
from .config import SchedulerConfig

FinishReason = Literal["stop", "length", "timeout", "abort", "error"]


class RequestState(StrEnum):
    """Lifecycle of a request.

    waiting → running; running ⇄ preempted, when out of pages; any state → finished.
    """

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


class EngineRequest:
    """One completion in progress; the scheduler owns its mutable state.

    Args:
        request_id: unique among unfinished requests.
        prompt_token_ids: at least one token.
        max_tokens: output limit; the scheduler replaces None with the largest value that fits.
        num_to_score: number of leading prompt tokens whose logits give prompt logprobs.
        end_token_ids: tokens that end the output; the sampler masks them until `min_tokens`.
        grammar, thinking_budget, token_counts: `StructuredOutputGrammar`, `ThinkingBudget` and
            `TokenCounts` (for penalties) of the sampler, or None.
        adapter: LoRA adapter index, −1 for none; requests share pages only within an adapter.

    Attributes:
        num_cached_tokens: prompt tokens found in the prefix cache at first admission.
        num_draft_uncomputed: trailing computed tokens that the draft model has yet to compute; its
            keys and values use the same page numbers.
        num_loading: tokens, after the computed ones, whose pages are being read from disk.
        num_uncached: uncached tokens when queued; used by `FairScheduler`.
        num_overtaken: prompt tokens of younger requests computed first; used by `FairScheduler`.
        state_slots: `RequestSlots` while running, if the model has recurrent state.
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        max_tokens: int | None = None,
        seed: int = 0,
        *,
        num_to_score: int = 0,
        end_token_ids: Sequence[int] = (),
        grammar: Any = None,
        thinking_budget: Any = None,
        token_counts: Any = None,
        adapter: int = -1,
    ):
        self.request_id = request_id
        self.params = params
        self.max_tokens = max_tokens
        self.seed = seed
        self.num_to_score = num_to_score
        self.end_token_ids = end_token_ids
        self.grammar = grammar
        self.thinking_budget = thinking_budget
        self.token_counts = token_counts
        self.adapter = adapter
        self.token_ids: list[int] = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.token_ids)
        self.state = RequestState.WAITING
        self.finish_reason: FinishReason | None = None
        self.arrival_index = -1
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.num_computed = 0
        self.num_loading = 0
        self.num_draft_uncomputed = 0
        self.page_ids = array("i")  # int32, like block tables
        self.num_shared = 0
        self.num_freed: list[int] = []  # blocks by KV cache group
        self.num_allocated: list[int] = []
        self.last_node: Any = None  # prefix cache node of the last shared page
        self.draft_token_ids: Sequence[int] = ()
        self.num_scored = 0
        self.num_uncached = self.num_overtaken = 0
        self.state_slots: Any = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed(self) -> int:
        """Number of tokens to compute; 1 while decoding, 0 while loading from disk."""
        return 0 if self.num_loading else len(self.token_ids) - self.num_computed

    @property
    def is_done(self) -> bool:
        return self.finish_reason is not None

    def end(self, reason: FinishReason) -> None:
        assert self.finish_reason is None, f"{self.request_id} has already ended"
        self.finish_reason = reason
        self.state = RequestState.FINISHED

    def __repr__(self) -> str:
        return (
            f"EngineRequest({self.request_id!r}, {self.state.value}, {self.num_computed} of "
            f"{self.num_tokens} tokens computed, {len(self.page_ids)} pages)"
        )


def fitting_max_tokens(config: SchedulerConfig, request: EngineRequest) -> int:
    """Returns `max_tokens`, or the largest value that fits if it is None.

    The bounds are `max_seq_len` and `max_tokens_in_pages`. The last output token needs no page: its
    keys and values are never computed.

    Raises:
        UserError: the prompt is empty or too long, or `max_tokens` does not fit.
    """
    prompt = request.num_prompt_tokens
    if prompt == 0:
        raise UserError("the prompt is empty; give at least one token.")
    in_pages = config.max_tokens_in_pages + 1 - prompt
    in_context = config.max_seq_len - prompt
    for largest, limit in (
        (in_context, f"the model's context length is {config.max_seq_len} tokens"),
        (in_pages, f"the KV memory holds {config.max_tokens_in_pages} tokens"),
    ):
        if largest < 1:
            raise UserError(f"the prompt has {prompt} tokens, but {limit}, including the output.")
        if request.max_tokens is not None and request.max_tokens > largest:
            raise UserError(
                f"the prompt has {prompt} tokens and max_tokens is "
                f"{short_repr(request.max_tokens)}, but {limit}; max_tokens must be at most "
                f"{largest} for this prompt."
            )
    return request.max_tokens or min(in_pages, in_context)


# Log-probabilities at one position, by token id: top tokens and the sampled or prompt token.
Logprobs = dict[int, float]


@dataclass(frozen=True)
class Chunk:
    """Tokens [start, end) of a request, followed by `num_drafts` draft tokens.

    Attributes:
        samples: whether the chunk reaches the end of the request's tokens and samples the next one.
        state_read_slot: slot of the recurrent state before the chunk; −1 for a zero state.
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
        """Number of tokens charged to the token budget, draft tokens included."""
        return self.end - self.start + self.num_drafts


@dataclass(frozen=True)
class SchedulerOutput:
    """Chunks of step `index`: at most one per request, one token or more each."""

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
        num_draft_uncomputed: see `EngineRequest`; these tokens' pages are not shared yet.
        logprobs, pooled: see `CompletionOutput`.
        prompt_logprobs: one entry per newly scored prompt token, starting at `num_scored`.
    """

    token_ids: Sequence[int]
    num_draft_uncomputed: int = 0
    logprobs: Sequence[Logprobs] | None = None
    prompt_logprobs: Sequence[Logprobs] = ()
    pooled: Sequence[float] | None = None
    error: str | None = None


@dataclass(frozen=True)
class RequestMetrics:
    """A request's timestamps, in seconds of `time.perf_counter`, and counts."""

    arrival_time: float
    first_scheduled_time: float | None = None  # start of the first step that included the request
    first_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0
    num_generation_tokens: int = 0  # output tokens of the last completion to finish

    @property
    def ttft(self) -> float | None:
        """Time to first token in seconds, queueing included."""
        return self._since_arrival(self.first_token_time)

    @property
    def queue_seconds(self) -> float | None:
        return self._since_arrival(self.first_scheduled_time)

    @property
    def e2e_seconds(self) -> float | None:
        return self._since_arrival(self.finished_time)

    def _since_arrival(self, time: float | None) -> float | None:
        return None if time is None else time - self.arrival_time


@dataclass
class CompletionOutput:
    """One of a prompt's `n` completions.

    Attributes:
        text: text so far, without the EOS token and, by default, without the stop string.
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

    Attributes:
        request_id: the caller's id, or the one generated by `add_request`.
        prompt: the caller's text or chat messages; None for token ids or a rejected request.
        prompt_token_ids: empty if the request was rejected.
        num_cached_tokens: prompt tokens found in the prefix cache.
        prompt_logprobs: if requested, one entry per prompt token, None for the first; complete once
            the first completion has a token.
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
        return all(output.finish_reason is not None for output in self.outputs)

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def token_ids(self) -> list[int]:
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.outputs[0].finish_reason

    @property
    def logprobs(self) -> list[Logprobs] | None:
        return self.outputs[0].logprobs


class StreamOutput(NamedTuple):  # a frozen dataclass takes 5 times as long to construct
    """One step's additions to one completion.

    Attributes:
        index, finish_reason, stop_reason, pooled: see `CompletionOutput`.
        text: new text; concatenating it over all outputs yields the completion's text.
        token_ids: new tokens: one, or several after accepted draft tokens; none on an abort,
            timeout or error.
        request_output: the request with all its completions, updated by later steps; all its
            stream outputs have the same object. None in a server's reports, which are immutable.
        logprobs: one entry per new token, if requested.
        prompt_logprobs: if requested, with completion 0's first tokens; see `RequestOutput`.
        is_first: whether `token_ids` includes the completion's first token.
        metrics: the request's metrics, set when its last completion ends.
        error: why a completion with finish_reason "error" failed.
    """

    request_id: str
    index: int  # type: ignore[assignment]  # hides `tuple.index`
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    request_output: RequestOutput = None  # type: ignore[assignment]  # see the docstring
    num_cached_tokens: int = 0
    stop_reason: int | str | None = None
    logprobs: tuple[Logprobs, ...] | None = None
    prompt_logprobs: tuple[Logprobs | None, ...] | None = None
    is_first: bool = False
    metrics: RequestMetrics | None = None
    pooled: tuple[float, ...] | None = None
    error: str | None = None

    @property
    def is_urgent(self) -> bool:
        """Whether to deliver without delay: a completion's first tokens, or its end."""
        return self.is_first or self.finish_reason is not None
