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
from ..http.openapi import ERROR_RESPONSES
from ..protocol.streaming import KEEP_ALIVE_COMMENT, sse_event, stream_headers

MAX_QUEUED_REPORTS = 1000  # per subscriber; further reports are dropped
SNAPSHOT_TIMEOUT = 0.5  # maximum seconds to wait for a new snapshot

router = APIRouter()


@router.get("/engine/state", tags=["engine"], responses={404: ERROR_RESPONSES[404]})
async def state(request: Request, model: str | None = None) -> dict[str, Any]:
    """Returns engine statistics, requests and KV pages as of the last step."""
    engine_client = get_app_state(request, model).engine_client
    await engine_client.refresh_snapshot(SNAPSHOT_TIMEOUT)
    return {**engine_state(engine_client), "snapshot": engine_client.snapshot}


@router.get("/engine/events", tags=["engine"], include_in_schema=False)
async def events(request: Request, model: str | None = None) -> Response:
    """Streams the engine's state and each step's events; never loads a model."""
    server = get_app_state(request, model)
    stream = _stream_events(server.engine_client, server.settings.keep_alive)
    return StreamingResponse(stream, headers=stream_headers())


def engine_state(engine_client: EngineClient) -> dict[str, Any]:
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
    yield from report.events
    if report.snapshot is not None:
        yield report.snapshot


async def _stream_events(engine_client: EngineClient, keep_alive: float) -> AsyncIterator[bytes]:
    reports: asyncio.Queue[StepReport] = asyncio.Queue(MAX_QUEUED_REPORTS)

    def on_report(report: StepReport) -> None:
        with contextlib.suppress(asyncio.QueueFull):
            reports.put_nowait(report)

    engine_client.subscribe(on_report)
    try:
        yield sse_event(engine_state(engine_client), "state")
        while not engine_client.is_shutting_down:
            try:
                report = await asyncio.wait_for(reports.get(), keep_alive)
            except TimeoutError:
                yield KEEP_ALIVE_COMMENT
                continue
            events = b"".join(map(sse_event, report_events(report)))
            yield events + sse_event(engine_state(engine_client), "state")
    finally:
        engine_client.unsubscribe(on_report)
