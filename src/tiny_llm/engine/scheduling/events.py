"""Events: what happens in the engine, for the live view, `--record` and tests.

The scheduler calls its listener with each event when it happens. A recording is one JSON object:

    {"schema": "tiny-llm-run", "version": 1, "engine": {…}, "events": [{"event": …, "time": …}, …]}

`time` is in seconds since the recording began. `event` is the name of a class below in snake case,
and the other keys are its attributes. Between them are snapshots of the whole engine, where there
is one: see `snapshot.py`. Within a version, keys are added and never changed.
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
    """A request left the queue and has pages for all its tokens; `cached_tokens` are in them."""

    request_id: str
    cached_tokens: int


@dataclass(frozen=True)
class RequestPreempted:
    """A request gave up its pages for an older one, and waits to compute its tokens again."""

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
    """A step computes tokens [start, end) of a request, and `num_drafts` guesses after them."""

    request_id: str
    start: int
    end: int
    num_drafts: int


@dataclass(frozen=True)
class PageCounts:
    """How many pages are in which state. free + cached + used are all pages.

    Attributes:
        free: neither in the prefix cache nor held by a request.
        cached: in the prefix cache, and not held by a request.
        used: held by requests.
        shared: held by more than one request; counted in `used` too.
    """

    free: int
    cached: int
    used: int
    shared: int


@dataclass(frozen=True)
class StepScheduled:
    """A step was planned: its chunks, the requests that run and wait, and the pages' states."""

    step: int
    chunks: tuple[ChunkPlan, ...]
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    pages: PageCounts


@dataclass(frozen=True)
class TokensAdded:
    """A request's answer grew by tokens, `accepted` of which were guesses."""

    request_id: str
    token_ids: tuple[int, ...]
    accepted: int


Event = (
    RequestAdded | RequestAdmitted | RequestPreempted | RequestEnded | StepScheduled | TokensAdded
)
Listener = Callable[[Event], None]


class Recorder:
    """A listener that keeps all events with their times.

    Args:
        engine: the engine's configuration (`LLM.describe`), for the recording's head.
        clock: the time in seconds.
    """

    def __init__(self, engine: dict[str, Any], clock: Callable[[], float] = time.perf_counter):
        self._engine = engine
        self._clock = clock
        self._started = clock()
        self._events: list[tuple[float, Event | dict[str, Any]]] = []

    @property
    def seconds(self) -> float:
        """Since the recording began."""
        return self._clock() - self._started

    def __call__(self, event: Event | dict[str, Any]) -> None:
        """Keeps an event, or a snapshot."""
        self._events.append((self.seconds, event))

    def recording(self) -> dict[str, Any]:
        """The recording as JSON has it: dictionaries, lists, texts and numbers."""
        events = [
            {**_as_fields(event), "time": round(seconds, 6)} for seconds, event in self._events
        ]
        return {"schema": SCHEMA, "version": VERSION, "engine": self._engine, "events": events}

    def write(self, file: Path) -> None:
        """Writes the recording as JSON. The file gets its name when it is whole.

        Raises:
            OSError: it cannot be written: it is a device, or the disk is full.
        """
        if file.exists() and not file.is_file():
            raise OSError(errno.EINVAL, "it is not a plain file")
        part = file.with_name(f"{file.name}.part")
        try:
            part.write_text(json.dumps(self.recording(), separators=(",", ":")) + "\n")
            part.replace(file)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def _as_fields(event: Event | dict[str, Any]) -> dict[str, Any]:
    return event if isinstance(event, dict) else event_fields(event)


def event_fields(event: Event) -> dict[str, Any]:
    """An event as JSON has it, without a time."""
    return {"event": _snake_case(type(event).__name__), **dataclasses.asdict(event)}


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
