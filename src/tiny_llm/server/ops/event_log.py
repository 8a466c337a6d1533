"""Event log for `--record FILE`: scheduler events as one JSON object.

The web UI replays event logs. Events are streamed to `FILE.part`, which is renamed at the end, so
that FILE is always complete.
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
    """Writes step reports to a file, replacing it; raises a `UserError` if that is impossible."""

    def __init__(self, file: Path):
        self._file = file
        self._temp_file = file.with_name(f"{file.name}.part")
        self._stream: TextIO | None = None
        try:
            if file.exists() and not file.is_file():  # renaming would replace a device file
                raise UserError(f"--record: '{file}' is not a regular file; choose another file.")
            self._stream = self._temp_file.open("w", encoding="utf-8")
        except OSError as error:  # `exists` also raises it if the name is too long
            raise UserError(f"--record: '{file}' cannot be written ({error.strerror}).") from error
        self._start_time: float | None = None

    def begin(self, engine: Mapping[str, Any]) -> None:
        """Writes the header; `engine` is the engine's configuration."""
        header = {"schema": SCHEMA, "version": VERSION, "engine": dict(engine)}
        self._write(json.dumps(header)[:-1] + ', "events": [')

    def record(self, report: StepReport) -> None:
        for event in report_events(report):
            separator = "\n" if self._start_time is None else ",\n"
            self._start_time = event["time"] if self._start_time is None else self._start_time
            timed = {**event, "time": round(event["time"] - self._start_time, 6)}
            self._write(separator + json.dumps(timed, separators=(",", ":")))

    def close(self) -> None:
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
        except OSError as error:  # e.g. disk full; the server continues without a log
            log.error(
                "event log stopped: '%s' cannot be written (%s)", self._temp_file, error.strerror
            )
            self._stream = None
