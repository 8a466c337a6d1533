"""Engine view: the web UI's pages, live state and events.

The content security policy forbids requests to other hosts, inline scripts and inline styles.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from ..engine_client.messages import StepReport
from ..http.errors import ERROR_RESPONSES
from ..models.requests import get_model
from ..models.served_model import ServedModel
from ..protocol.streaming import KEEP_ALIVE_COMMENT, sse_event, stream_headers

MAX_QUEUED_REPORTS = 1000  # per subscriber; further reports are dropped
SNAPSHOT_TIMEOUT = 0.5  # maximum seconds to wait for a new snapshot
WEB_ROOT = Path(__file__).parents[1] / "web"

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # revalidated on each load, so that upgrades take effect
}

router = APIRouter()


@router.get("/", include_in_schema=False)
async def page() -> Response:
    return FileResponse(WEB_ROOT / "index.html", headers=HEADERS)


@router.get("/docs", include_in_schema=False)
async def docs() -> Response:
    return FileResponse(WEB_ROOT / "docs.html", headers=HEADERS)


class _StaticFiles(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


static_files = Mount("/page", _StaticFiles(directory=WEB_ROOT / "page"), name="page")


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
