"""`GET /engine/state` and `/engine/events`, for the live engine view."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from ..engine_client.messages import StepReport
from ..http.openapi import ERROR_RESPONSES
from ..models.loading import get_model
from ..models.served_model import ServedModel
from ..protocol.streaming import KEEP_ALIVE_COMMENT, sse_event, stream_headers

MAX_QUEUED_REPORTS = 1000  # per subscriber; further reports are dropped
SNAPSHOT_TIMEOUT = 0.5  # maximum seconds to wait for a new snapshot

router = APIRouter()


@router.get("/engine/state", tags=["engine"], responses={404: ERROR_RESPONSES[404]})
async def state(request: Request, model: str | None = None) -> dict[str, Any]:
    """Returns engine statistics, requests and KV pages as of the last step."""
    served = get_model(request, model)
    await served.refresh_snapshot(SNAPSHOT_TIMEOUT)
    return {**engine_state(served), "snapshot": served.snapshot}


@router.get("/engine/events", tags=["engine"], include_in_schema=False)
async def events(request: Request, model: str | None = None) -> Response:
    """Streams the engine's state and each step's events; never loads a model."""
    return StreamingResponse(_stream_events(get_model(request, model)), headers=stream_headers())


def engine_state(model: ServedModel) -> dict[str, Any]:
    return {
        "phase": model.phase.value,
        "config": None if model.engine_info is None else dict(model.engine_info.config),
        "unfinished": model.num_unfinished,
        "clients": len(model.in_flight),
        **vars(model.stats),
    }


def report_events(report: StepReport) -> Iterator[Mapping[str, Any]]:
    yield from report.events
    if report.snapshot is not None:
        yield report.snapshot


async def _stream_events(model: ServedModel) -> AsyncIterator[bytes]:
    reports: asyncio.Queue[StepReport] = asyncio.Queue(MAX_QUEUED_REPORTS)

    def on_report(report: StepReport) -> None:
        with contextlib.suppress(asyncio.QueueFull):
            reports.put_nowait(report)

    model.subscribe(on_report)
    try:
        yield sse_event(engine_state(model), "state")
        while not model.is_shutting_down:
            try:
                report = await asyncio.wait_for(reports.get(), model.settings.keep_alive)
            except TimeoutError:
                yield KEEP_ALIVE_COMMENT
                continue
            events = b"".join(map(sse_event, report_events(report)))
            yield events + sse_event(engine_state(model), "state")
    finally:
        model.unsubscribe(on_report)
