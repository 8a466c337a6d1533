"""Operations endpoints: probes, metrics, served models, web UI."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from .engine_client.messages import StepReport
from .http.errors import ERROR_RESPONSES
from .models.requests import get_model, get_models
from .models.served_model import Phase, ServedModel
from .protocol.streaming import KEEP_ALIVE_COMMENT, sse_event, stream_headers

UNKNOWN_MODEL: dict[int | str, dict[str, Any]] = {404: ERROR_RESPONSES[404]}
MAX_QUEUED_REPORTS = 1000  # per subscriber; further reports are dropped
SNAPSHOT_TIMEOUT = 0.5  # maximum seconds to wait for a new snapshot
WEB_ROOT = Path(__file__).parent / "web"

# Forbids requests to other hosts, inline scripts and inline styles.
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


@router.head("/health", include_in_schema=False)
@router.get("/health", tags=["service"], responses=UNKNOWN_MODEL)
async def health(request: Request, model: str | None = None) -> dict[str, str]:
    """Liveness probe: 200 for any served model, regardless of its engine's state."""
    get_model(request, model)
    return {"status": "ok"}


@router.post("/ping", include_in_schema=False)
@router.get("/ping", tags=["service"])
async def ping(request: Request) -> dict[str, str]:
    """Alias of `/health`, used by hosting services."""
    return await health(request)


@router.get("/load", tags=["service"], responses=UNKNOWN_MODEL)
async def load(request: Request, model: str | None = None) -> dict[str, int]:
    """Returns the number of requests in flight, for one model or in total."""
    models = get_models(request) if model is None else [get_model(request, model)]
    return {"server_load": sum(len(each.in_flight) for each in models)}


@router.head("/ready", include_in_schema=False)
@router.get("/ready", tags=["service"], responses={503: ERROR_RESPONSES[503], **UNKNOWN_MODEL})
async def ready(request: Request, model: str | None = None) -> dict[str, str]:
    """Readiness probe: 200 if requests are accepted, else 503 with the reason.

    With `model`, that model must be loaded; without it, all models that are loaded at startup.
    """
    models = get_models(request) if model is None else [get_model(request, model)]
    for each in models:
        is_ending = each.phase in (Phase.DRAINING, Phase.FAILED)
        if model is not None or each.spec.is_pinned or is_ending:
            each.check_ready()
    return {"status": "ready"}


@router.head("/version", include_in_schema=False)
@router.get("/version", tags=["service"])
async def get_version() -> dict[str, str]:
    """Returns the tiny-llm version."""
    return {"version": version("tiny-llm")}


@router.head("/metrics", include_in_schema=False)
@router.get("/metrics", tags=["service"], response_class=Response)
async def metrics(request: Request) -> Response:
    """Returns metrics in the Prometheus text format."""
    models = get_models(request)
    stats = {model.name: model.stats for model in models}
    memory = {model.name: model.memory_bytes for model in models if model.is_loaded}
    return Response(models[0].metrics.render(stats, memory), media_type=CONTENT_TYPE_LATEST)


@router.head("/", include_in_schema=False)
@router.head("/api/hello", include_in_schema=False)
async def head() -> Response:
    """Connectivity check used by Anthropic's clients."""
    return Response()


@router.head("/v1/models", include_in_schema=False)
@router.get("/v1/models", tags=["OpenAI"])
async def models(request: Request) -> dict[str, Any]:
    """Lists models and adapters, in OpenAI's and in Codex's format (`models`)."""
    listed = [_describe(name, served) for served in get_models(request) for name in served.names]
    page = {"first_id": listed[0]["id"], "last_id": listed[-1]["id"], "has_more": False}
    codex_models = [{**model, "slug": model["id"]} for model in listed]
    return {"object": "list", "data": listed, "models": codex_models, **page}


def _describe(name: str, served: ServedModel) -> dict[str, Any]:
    is_adapter = served.adapter_of(name) is not None
    described: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": served.created,
        "owned_by": "tiny-llm",
        "root": name if is_adapter else served.name,
        "parent": served.name if is_adapter else None,
        "permission": [],
        "type": "model",
        "display_name": name,
        "loaded": served.phase is Phase.READY,
        "task": served.task,
        "created_at": datetime.fromtimestamp(served.created, UTC).isoformat(),
    }
    if served.is_loaded:
        described["max_model_len"] = served.max_seq_len
    return described


@router.get("/v1/models/{name:path}", tags=["OpenAI"], responses=UNKNOWN_MODEL)
async def model(name: str, request: Request) -> dict[str, Any]:
    """Returns a served model in OpenAI's format."""
    return _describe(name, get_model(request, name))


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


@router.get("/engine/state", tags=["engine"], responses=UNKNOWN_MODEL)
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
