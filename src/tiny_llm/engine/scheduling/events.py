"""Scheduler events and recordings, for `--record` and the live view.

The scheduler calls its listener synchronously with each event, a JSON-serializable dictionary. The
key "event" holds its name, which determines the other keys:

    request_added        the request joined the queue: request_id, prompt_tokens, max_tokens
    request_admitted     it left the queue with pages allocated: request_id, cached_tokens (prefix
                         cache hits)
    request_preempted    its pages were released: request_id, lost_tokens (to be recomputed)
    request_ended        request_id, reason (stop, length, timeout, abort or error), output_tokens,
                         error (message or null)
    tokens_added         its output grew: request_id, token_ids, accepted (how many of them were
                         draft tokens)
    step_scheduled       step (number), chunks, running and waiting (request ids), pages
                         (`PageCounts`). A chunk is tokens [start, end) of a request, followed by
                         draft tokens: request_id, start, end, num_drafts
    state_slot_counts    fields of `StateSlotCounts`; follows step_scheduled if the model has
                         recurrent state

A recording is one JSON object:

    {"schema": "tiny-llm-run", "version": 1, "engine": {…}, "events": [{"event": …, "time": …}, …]}

`time`: seconds since the start of the recording. Snapshots of the scheduler may appear between
events; see `snapshot.py`. Within a version, keys are only added.
"""

import errno
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = "tiny-llm-run"
VERSION = 1


Event = dict[str, Any]
Listener = Callable[[Event], None]


@dataclass(frozen=True)
class PageCounts:
    """Page counts by state; free + cached + used = all pages."""

    free: int  # neither in the prefix cache nor referenced by a request
    cached: int  # in the prefix cache, not referenced by a request
    used: int  # referenced by requests
    shared: int  # referenced by more than one request; included in `used`


@dataclass(frozen=True)
class StateSlotCounts:
    """Counts of recurrent state slots, by use."""

    free: int  # neither checkpoints nor used by a request
    cached: int  # checkpoints of the prefix cache, not used by a request
    used: int
    checkpoints: int  # all checkpoints, including those in use by requests


class Recorder:
    """Listener that stores all events; `engine` is the result of `LLM.describe`."""

    def __init__(self, engine: dict[str, Any], clock: Callable[[], float] = time.perf_counter):
        self._engine = engine
        self._clock = clock
        self._started = clock()
        self._events: list[Event] = []

    @property
    def seconds(self) -> float:
        return self._clock() - self._started

    def __call__(self, event: Event) -> None:
        self._events.append({**event, "time": round(self.seconds, 6)})

    def recording(self) -> dict[str, Any]:
        header = {"schema": SCHEMA, "version": VERSION, "engine": self._engine}
        return {**header, "events": self._events}

    def write(self, file: Path) -> None:
        """Writes the recording as JSON, atomically.

        Raises:
            OSError: the path exists and is not a regular file, or writing failed.
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
