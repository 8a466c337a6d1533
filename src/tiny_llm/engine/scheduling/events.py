"""Scheduler events and recordings, for `--record` and the live view.

The scheduler calls its listener synchronously with each event. A recording is one JSON object:

    {"schema": "tiny-llm-run", "version": 1, "engine": {…}, "events": [{"event": …, "time": …}, …]}

`time`: seconds since the start of the recording. `event`: the snake-case name of a class below; the
other keys are its attributes. Snapshots of the whole engine may appear between events, see
`snapshot.py`. Within a version, keys are only added.
"""

import dataclasses
import errno
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = "tiny-llm-run"
VERSION = 1


@dataclass(frozen=True)
class RequestAdded:
    """A request joined the queue."""

    request_id: str
    prompt_tokens: int
    max_tokens: int


@dataclass(frozen=True)
class RequestAdmitted:
    """A request left the queue with pages allocated; `cached_tokens` were prefix cache hits."""

    request_id: str
    cached_tokens: int


@dataclass(frozen=True)
class RequestPreempted:
    """A request was preempted and its pages released; `lost_tokens` must be recomputed."""

    request_id: str
    lost_tokens: int


@dataclass(frozen=True)
class RequestEnded:
    """A request ended; `reason` is stop, length, timeout, abort or error."""

    request_id: str
    reason: str
    output_tokens: int
    error: str | None


@dataclass(frozen=True)
class ChunkPlan:
    """A step's chunk: tokens [start, end) of a request, followed by `num_drafts` draft tokens."""

    request_id: str
    start: int
    end: int
    num_drafts: int


@dataclass(frozen=True)
class PageCounts:
    """Page counts by state; free + cached + used = all pages.

    Attributes:
        free: neither in the prefix cache nor referenced by a request.
        cached: in the prefix cache, not referenced by a request.
        used: referenced by requests.
        shared: referenced by more than one request; included in `used`.
    """

    free: int
    cached: int
    used: int
    shared: int


@dataclass(frozen=True)
class StateSlotCounts:
    """Recurrent state slots by state; follows `StepScheduled` if the model has recurrent state.

    Attributes:
        free: neither checkpoints nor used by a request.
        cached: checkpoints of the prefix cache, not used by a request.
        used: used by requests.
        checkpoints: all checkpoints, including those in use by requests.
    """

    free: int
    cached: int
    used: int
    checkpoints: int


@dataclass(frozen=True)
class StepScheduled:
    """A step was scheduled: chunks, running and waiting requests, page counts."""

    step: int
    chunks: tuple[ChunkPlan, ...]
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    pages: PageCounts


@dataclass(frozen=True)
class TokensAdded:
    """A request's output grew; `accepted` of the tokens were draft tokens."""

    request_id: str
    token_ids: tuple[int, ...]
    accepted: int


Event = (
    RequestAdded
    | RequestAdmitted
    | RequestPreempted
    | RequestEnded
    | StepScheduled
    | StateSlotCounts
    | TokensAdded
)
Listener = Callable[[Event], None]


class Recorder:
    """Listener that stores all events with timestamps.

    Args:
        engine: engine configuration (`LLM.describe`), for the recording's header.
        clock: function that returns the time in seconds.
    """

    def __init__(self, engine: dict[str, Any], clock: Callable[[], float] = time.perf_counter):
        self._engine = engine
        self._clock = clock
        self._started = clock()
        self._events: list[tuple[float, Event | dict[str, Any]]] = []

    @property
    def seconds(self) -> float:
        """Seconds since the start of the recording."""
        return self._clock() - self._started

    def __call__(self, event: Event | dict[str, Any]) -> None:
        """Stores an event or a snapshot."""
        self._events.append((self.seconds, event))

    def recording(self) -> dict[str, Any]:
        """Returns the recording as JSON-serializable data."""
        events = [
            {**(event if isinstance(event, dict) else event_fields(event)), "time": round(time, 6)}
            for time, event in self._events
        ]
        return {"schema": SCHEMA, "version": VERSION, "engine": self._engine, "events": events}

    def write(self, file: Path) -> None:
        """Writes the recording as JSON, atomically.

        Raises:
            OSError: the path is a device, or writing failed.
        """
        if file.exists() and not file.is_file():
            raise OSError(errno.EINVAL, "not a regular file")
        temporary = file.with_name(f"{file.name}.part")
        try:
            temporary.write_text(json.dumps(self.recording(), separators=(",", ":")) + "\n")
            temporary.replace(file)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def event_fields(event: Event) -> dict[str, Any]:
    """Returns an event as JSON-serializable data, without a timestamp."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()  # snake case
    return {"event": name, **dataclasses.asdict(event)}
