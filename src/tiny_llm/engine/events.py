"""What happened, for those who watch: the live view, `--record`, the tests.

The scheduler and the engine tell each event to whoever listens, when it happens; nobody asks them
for their state. A recording is one JSON object:

    {"schema": "tiny-llm-run", "version": 1, "engine": {…}, "events": [{"event": …, "time": …}, …]}

`time` is in seconds since the recording began, `event` the name of a class below in snake case, and
the other keys are its attributes. Within a version, keys are added and never changed.
"""

import dataclasses
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
    """A request left the queue and has pages for all its tokens, `cached_tokens` of them filled."""

    request_id: str
    cached_tokens: int


@dataclass(frozen=True)
class RequestPreempted:
    """A request gave its pages to an older one, and waits to compute its tokens again."""

    request_id: str
    lost_tokens: int


@dataclass(frozen=True)
class RequestEnded:
    """A request is done: `reason` is stop, length, abort or error."""

    request_id: str
    reason: str
    output_tokens: int
    error: str | None


@dataclass(frozen=True)
class ChunkPlan:
    """What a step computes of one request: tokens [start, end), and guesses after them."""

    request_id: str
    start: int
    end: int
    num_drafts: int


@dataclass(frozen=True)
class PageCounts:
    """Where the pages are: free + cached + used = all of them; shared are among the used.

    Attributes:
        free: nobody's.
        cached: in the prefix cache, and held by no request.
        used: held by requests.
        shared: held by more than one.
    """

    free: int
    cached: int
    used: int
    shared: int


@dataclass(frozen=True)
class StepScheduled:
    """A step was planned: what it computes, who runs and waits, and where the pages are."""

    step: int
    chunks: tuple[ChunkPlan, ...]
    running: tuple[str, ...]
    waiting: tuple[str, ...]
    pages: PageCounts


@dataclass(frozen=True)
class TokensAdded:
    """A request's answer grew by these tokens, `accepted` of which were guesses."""

    request_id: str
    token_ids: tuple[int, ...]
    accepted: int


Event = (
    RequestAdded | RequestAdmitted | RequestPreempted | RequestEnded | StepScheduled | TokensAdded
)
Listener = Callable[[Event], None]


class Recorder:
    """A listener that keeps everything, with the time it came.

    Args:
        engine: how the engine is configured, for the recording's head.
        clock: seconds; the simulator's is not the wall's.
    """

    def __init__(self, engine: dict[str, Any], clock: Callable[[], float] = time.perf_counter):
        self._engine = engine
        self._clock = clock
        self._started = clock()
        self._events: list[tuple[float, Event]] = []

    def __call__(self, event: Event) -> None:
        """Keeps an event."""
        self._events.append((self._clock() - self._started, event))

    def recording(self) -> dict[str, Any]:
        """The recording, of what JSON has."""
        events = [
            {
                "event": _snake_case(type(event).__name__),
                "time": round(seconds, 6),
                **dataclasses.asdict(event),
            }
            for seconds, event in self._events
        ]
        return {"schema": SCHEMA, "version": VERSION, "engine": self._engine, "events": events}

    def write(self, file: Path) -> None:
        """Writes the recording as JSON."""
        file.write_text(json.dumps(self.recording(), separators=(",", ":")) + "\n")


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
