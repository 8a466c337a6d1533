"""`GET /engine/state` and `/engine/events`, for the live engine view."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from ..context import get_app_state
from ..engine_client.client import EngineClient
from ..engine_client.messages import StepReport
from ..http.errors import to_json
from ..http.openapi import ERROR_RESPONSES
from ..protocol.streaming import KEEP_ALIVE_COMMENT, sse_event, stream_headers

MAX_QUEUED_REPORTS = 1000  # per subscriber; further reports are dropped
SNAPSHOT_TIMEOUT = 0.5  # maximum wait in seconds for the current step

router = APIRouter()


@router.get("/engine/state", tags=["engine"], responses={404: ERROR_RESPONSES[404]})
async def state(request: Request, model: str | None = None) -> dict[str, Any]:
    """Returns engine statistics, requests and KV pages (`snapshot`) as of the last step."""
    engine_client = get_app_state(request, model).engine_client
    await engine_client.refresh_snapshot(SNAPSHOT_TIMEOUT)
    return {**engine_state(engine_client), "snapshot": engine_client.snapshot}


@router.get("/engine/events", tags=["engine"], include_in_schema=False)
async def events(request: Request, model: str | None = None) -> Response:
    """Streams the engine's state and each step's events; never triggers a load of the model."""
    server = get_app_state(request, model)
    subscriber = EventSubscriber(server.engine_client)
    stream = subscriber.events(server.settings.keep_alive)
    return StreamingResponse(stream, headers=stream_headers())


def engine_state(engine_client: EngineClient) -> dict[str, Any]:
    """Returns the engine state as a JSON object."""
    stats = engine_client.stats
    return {
        "phase": engine_client.lifecycle.phase.value,
        "config": None
        if engine_client.engine_info is None
        else dict(engine_client.engine_info.config),
        "unfinished": engine_client.num_unfinished,
        "clients": len(engine_client.in_flight),
        **{name: getattr(stats, name) for name in stats.__dataclass_fields__},
    }


def report_events(report: StepReport) -> Iterator[Mapping[str, Any]]:
    """Encodes a report's events, then its snapshot."""
    yield from report.events
    if report.snapshot is not None:
        yield report.snapshot


class EventSubscriber:
    """Subscriber to engine events, which are reported only while there are subscribers."""

    def __init__(self, engine_client: EngineClient):
        self._engine_client = engine_client
        self._reports: asyncio.Queue[StepReport] = asyncio.Queue(MAX_QUEUED_REPORTS)

    async def events(self, keep_alive: float) -> AsyncIterator[bytes]:
        """Streams state and events until shutdown."""
        engine_client = self._engine_client
        engine_client.subscribe(self._on_report)
        try:
            yield sse_event(engine_state(engine_client), "state")
            while not engine_client.shutting_down.is_set():
                report = await self._next(keep_alive)
                if report is None:
                    yield KEEP_ALIVE_COMMENT
                    continue
                data = b"".join(
                    b"data: " + to_json(event) + b"\n\n" for event in report_events(report)
                )
                yield data + sse_event(engine_state(engine_client), "state")
        finally:
            engine_client.unsubscribe(self._on_report)

    async def _next(self, seconds: float) -> StepReport | None:
        """Waits for the next report; None on timeout or shutdown."""
        next_report = asyncio.ensure_future(self._reports.get())
        shutting_down = asyncio.ensure_future(self._engine_client.shutting_down.wait())
        try:
            await asyncio.wait(
                (next_report, shutting_down), timeout=seconds, return_when="FIRST_COMPLETED"
            )
            return next_report.result() if next_report.done() else None
        finally:
            next_report.cancel()
            shutting_down.cancel()

    def _on_report(self, report: StepReport) -> None:
        with contextlib.suppress(asyncio.QueueFull):
            self._reports.put_nowait(report)
