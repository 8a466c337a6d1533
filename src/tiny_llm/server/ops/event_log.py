"""`--record FILE`: everything that the engine does, in the form of `engine/scheduling/events.py`.

The page of the server plays such a file. Events are written as they come, beside the file that was
named, and it gets its name at the end: a file with that name is whole.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from ...engine.scheduling.events import SCHEMA, VERSION
from ...errors import UserError
from ..engine_client.messages import StepReport
from .engine_view import report_events

log = logging.getLogger("tiny_llm.server")


class EventLogWriter:
    """Writes reports to a file.

    Args:
        file: is replaced.

    Raises:
        UserError: it cannot be written.
    """

    def __init__(self, file: Path):
        if file.exists() and not file.is_file():  # a device would lose its name
            raise UserError(f"--record: '{file}' is not a plain file; give another name.")
        self._file = file
        self._temp_file = file.with_name(f"{file.name}.part")
        self._stream: TextIO | None = None
        try:
            self._stream = self._temp_file.open("w", encoding="utf-8")
        except OSError as error:
            raise UserError(f"--record: '{file}' cannot be written ({error.strerror}).") from error
        self._start_time: float | None = None

    def begin(self, engine: Mapping[str, Any]) -> None:
        """Writes the head, with the engine's configuration."""
        head = {"schema": SCHEMA, "version": VERSION, "engine": dict(engine)}
        self._write(json.dumps(head)[:-1] + ', "events": [')

    def take(self, report: StepReport) -> None:
        """Writes what a step did."""
        for event in report_events(report):
            separator = "\n" if self._start_time is None else ",\n"
            self._start_time = event["time"] if self._start_time is None else self._start_time
            timed = {**event, "time": round(event["time"] - self._start_time, 6)}
            self._write(separator + json.dumps(timed, separators=(",", ":")))

    def close(self) -> None:
        """Ends the recording, and gives the file its name."""
        self._write("\n]}\n", is_last=True)
        if self._stream is not None:
            self._temp_file.replace(self._file)
            log.info("recorded: %s", self._file)

    def _write(self, text: str, is_last: bool = False) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            if is_last:
                self._stream.close()
        except OSError as error:  # the disk is full: the server goes on without
            log.error(
                "the recording ends: '%s' cannot be written (%s)", self._temp_file, error.strerror
            )
            self._stream = None
