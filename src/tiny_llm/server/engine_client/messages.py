"""What the event loop and the engine's thread say to each other.

Plain data only: either side could be another process. The event loop sends `AddRequest`,
`AbortRequest`,
`Precompute`, `EnableEvents`, `SnapshotRequest` and `Shutdown`; the engine's thread sends
`EngineReady` once, then a
`StepReport` after each step, and `EngineDead` if it ends against its will.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...engine.inputs.sampling_params import SamplingParams
from ...engine.scheduling.request import FinishReason

SHUTDOWN_GRACE_SECONDS = 1.0  # seconds for errors to reach the clients of a process that gives up

# ---------------------------------------------------------------- to the engine


@dataclass(frozen=True)
class AddRequest:
    """Answer a prompt.

    Attributes:
        request_id: unique for the life of the process.
        token_ids: the prompt.
        params: how to answer.
        thinking_enabled: whether an answer that must have a form may begin with thoughts.
    """

    request_id: str
    token_ids: tuple[int, ...]
    params: SamplingParams
    thinking_enabled: bool = False


@dataclass(frozen=True)
class AbortRequest:
    """Stop answering a prompt, and free its memory; no effect if it has ended."""

    request_id: str


@dataclass(frozen=True)
class Precompute:
    """A prompt is likely to begin like this: compute it while there is nothing else to do."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class EnableEvents:
    """Whether step reports shall contain the engine's events, and snapshots now and then."""

    enabled: bool


@dataclass(frozen=True)
class SnapshotRequest:
    """The next step report shall contain a snapshot."""


@dataclass(frozen=True)
class Shutdown:
    """End the thread."""


EngineCommand = AddRequest | AbortRequest | Precompute | EnableEvents | SnapshotRequest | Shutdown

# ---------------------------------------------------------------- from the engine


@dataclass(frozen=True)
class EngineReady:
    """The model is there.

    Attributes:
        vocab_size: token ids are below it.
        max_seq_len: tokens of prompt and answer that a request may have: the context, or all pages.
        max_num_seqs: requests that run at the same time.
        config: the engine's configuration, for people.
    """

    vocab_size: int
    max_seq_len: int
    max_num_seqs: int
    config: Mapping[str, Any]


@dataclass(frozen=True)
class RequestRejected:
    """A prompt was not accepted; `reason` is a sentence for the client."""

    request_id: str
    reason: str


@dataclass(frozen=True)
class RequestAccepted:
    """A prompt is in the engine's queue."""

    request_id: str


@dataclass(frozen=True)
class FinishedRequestStats:
    """When things happened to a request, in seconds since it arrived at the engine.

    Attributes:
        queued_time: until a step first computed some of it; None if none did.
        first_token_latency: until its first token; None if there was none.
        e2e_latency: until its end.
        num_generation_tokens: of the answer that ended last.
    """

    queued_time: float | None
    first_token_latency: float | None
    e2e_latency: float
    num_generation_tokens: int


@dataclass(slots=True)  # not frozen: there is one for each token, and it is made five times as fast
class OutputDelta:
    """What a step added to one answer. Nobody changes it.

    Attributes:
        request_id, index: which prompt, and which of its `n` answers.
        text: new text.
        token_ids: new tokens.
        logprobs: for each new token, log-probabilities by token id; None if not asked for.
        cached_tokens: tokens of the prompt that were found in the prefix cache.
        finish_reason: None until the answer ends.
        stop_reason: the token or string that stopped it, besides the model's own end tokens.
        finished_stats: with the last piece of a prompt's last answer.
        prompt_logprobs: for each token of the prompt, what `logprobs` has, and None for the first;
            with the first tokens of answer 0, if asked for.
        is_first: whether the answer begins with it.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[Mapping[int, float], ...] | None
    cached_tokens: int
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    finished_stats: FinishedRequestStats | None
    prompt_logprobs: tuple[Mapping[int, float] | None, ...] | None = None
    is_first: bool = False

    @property
    def is_urgent(self) -> bool:
        """Whether a client waits for it more than for another one."""
        return self.is_first or self.finish_reason is not None


@dataclass(frozen=True)
class EngineStats:
    """The engine's state in numbers; totals count from its beginning."""

    running: int = 0
    waiting: int = 0
    pages: int = 0
    free_pages: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0


@dataclass(frozen=True)
class StepReport:
    """Everything that happened in a step, in order.

    Attributes:
        updates: outcomes of requests.
        stats: the state after it.
        events: of the engine, as JSON has them; empty unless they are watched.
        snapshot: who has what after the step (`engine/scheduling/snapshot.py`), if it is looked at.
    """

    updates: tuple[RequestAccepted | RequestRejected | OutputDelta, ...]
    stats: EngineStats
    events: tuple[Mapping[str, Any], ...] = ()
    snapshot: Mapping[str, Any] | None = None

    @property
    def is_urgent(self) -> bool:
        """Whether it is more than tokens between the first and the last."""
        if self.events or self.snapshot is not None:
            return True
        return any(not isinstance(item, OutputDelta) or item.is_urgent for item in self.updates)


@dataclass(frozen=True)
class EngineDead:
    """The thread has ended: `reason` says why, for the log and `/ready`."""

    reason: str


EngineMessage = EngineReady | StepReport | EngineDead
