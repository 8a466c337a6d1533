"""`--record FILE`: everything that the engine does, in the form of `engine/events.py`.

The page of the server plays such a file. Events are written as they come, beside the file that was
named, and it gets its name at the end: a file with that name is whole.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from ..engine.events import SCHEMA, VERSION
from ..errors import UserError
from .engine_view import all_events
from .seam import StepReport

log = logging.getLogger("tiny_llm.server")


class Recording:
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
        self._part = file.with_name(f"{file.name}.part")
        self._out: TextIO | None = None
        try:
            self._out = self._part.open("w", encoding="utf-8")
        except OSError as error:
            raise UserError(f"--record: '{file}' cannot be written ({error.strerror}).") from error
        self._began: float | None = None

    def begin(self, engine: Mapping[str, Any]) -> None:
        """Writes the head, with the engine's configuration."""
        head = {"schema": SCHEMA, "version": VERSION, "engine": dict(engine)}
        self._write(json.dumps(head)[:-1] + ', "events": [')

    def take(self, report: StepReport) -> None:
        """Writes what a step did."""
        for event in all_events(report):
            separator = "\n" if self._began is None else ",\n"
            self._began = event["time"] if self._began is None else self._began
            timed = {**event, "time": round(event["time"] - self._began, 6)}
            self._write(separator + json.dumps(timed, separators=(",", ":")))

    def close(self) -> None:
        """Ends the recording, and gives the file its name."""
        self._write("\n]}\n", is_last=True)
        if self._out is not None:
            self._part.replace(self._file)
            log.info("recorded: %s", self._file)

    def _write(self, text: str, is_last: bool = False) -> None:
        if self._out is None:
            return
        try:
            self._out.write(text)
            if is_last:
                self._out.close()
        except OSError as error:  # the disk is full: the server goes on without
            log.error("the recording ends: '%s' cannot be written (%s)", self._part, error.strerror)
            self._out = None
