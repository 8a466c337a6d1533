"""Messages between the event loop and the engine thread.

Immutable. The event loop sends `EngineCommand`s. The engine thread sends `EngineReady` or
`LoadFailed` after `LoadModel`, a `StepReport` after each step, `ModelUnloaded` after `UnloadModel`,
and `EngineDead` on failure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...engine.inputs.sampling_params import SamplingParams
from ...engine.scheduling.request import StreamOutput

# Delay before a failed process exits, so that clients receive the error.
SHUTDOWN_GRACE_SECONDS = 1.0


class EngineCommand:
    """Base class of the event loop's commands."""


@dataclass(frozen=True)
class LoadModel(EngineCommand):
    """Loads the model.

    While no model is loaded, commands other than this one and `Shutdown` are dropped.
    """


@dataclass(frozen=True)
class UnloadModel(EngineCommand):
    """Releases the model's memory. There must be no unfinished requests."""


@dataclass(frozen=True)
class AddRequest(EngineCommand):
    """Queues a prompt that passes the engine's checks."""

    request_id: str  # unique within the process
    token_ids: Sequence[int]
    params: SamplingParams
    thinking_enabled: bool = False  # whether a structured output may begin with reasoning
    deadline: float | None = None  # `time.monotonic()` at which the request times out
    lora: str | None = None  # name of the LoRA adapter


@dataclass(frozen=True)
class AbortRequest(EngineCommand):
    """Aborts a request and releases its pages; a no-op if it has finished."""

    request_id: str


@dataclass(frozen=True)
class Precompute(EngineCommand):
    """Precomputes a likely prompt prefix while the engine is idle."""

    token_ids: Sequence[int]
    lora: str | None = None


@dataclass(frozen=True)
class EnableEvents(EngineCommand):
    """Turns scheduler events and periodic snapshots in step reports on or off."""

    enabled: bool


@dataclass(frozen=True)
class SnapshotRequest(EngineCommand):
    """Requests a snapshot (`engine/scheduling/events.py`) in the next report."""


@dataclass(frozen=True)
class Shutdown(EngineCommand):
    """Stops the engine thread."""


class EngineMessage:
    """Base class of the engine thread's messages."""


@dataclass(frozen=True)
class EngineReady(EngineMessage):
    vocab_size: int
    max_seq_len: int  # tokens of prompt plus completion: min(context length, KV cache tokens + 1)
    max_num_seqs: int
    config: Mapping[str, Any]  # for display
    hidden_size: int = 0  # size of embeddings
    tokenizer: Any = None  # shared with the engine; thread-safe
    # `LLM.compile_grammar`, for worker threads; keeps the model in memory.
    compile_grammar: Callable[..., Any] | None = None


@dataclass(frozen=True)
class LoadFailed(EngineMessage):
    reason: str


@dataclass(frozen=True)
class ModelUnloaded(EngineMessage):
    """The model's memory has been released."""


@dataclass(frozen=True)
class EngineStats:
    """Engine gauges as of the last step, and totals since the model was loaded."""

    running: int = 0
    waiting: int = 0
    pages: int = 0
    free_pages: int = 0
    state_slots: int = 0
    used_state_slots: int = 0
    checkpoints: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    draft_tokens: int = 0
    accepted_draft_tokens: int = 0
    disk_cache: Mapping[str, int] | None = None  # `DiskCacheStats`; needs --prefix-cache-dir
    memory_evictions: int = 0


@dataclass(frozen=True)
class StepReport(EngineMessage):
    outputs: tuple[StreamOutput, ...]
    stats: EngineStats
    events: tuple[Mapping[str, Any], ...] = ()  # JSON objects; empty without subscribers
    snapshot: Mapping[str, Any] | None = None  # if requested, or due for subscribers


@dataclass(frozen=True)
class EngineDead(EngineMessage):
    """The engine thread has failed; `reason` is logged, and returned by `/ready`."""

    reason: str
