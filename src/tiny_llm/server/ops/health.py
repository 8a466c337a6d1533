"""Health, readiness, load, version, metrics and model endpoints."""

from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from ..context import AppState, get_app_state, get_app_states
from ..engine_client.lifecycle import Phase
from ..http.openapi import ERROR_RESPONSES

UNKNOWN_MODEL: dict[int | str, dict[str, Any]] = {404: ERROR_RESPONSES[404]}
router = APIRouter()


@router.head("/health", include_in_schema=False)
@router.get("/health", tags=["service"], responses=UNKNOWN_MODEL)
async def health(request: Request, model: str | None = None) -> dict[str, str]:
    """Liveness probe: 200 for any served model, regardless of its engine's state."""
    get_app_state(request, model)
    return {"status": "ok"}


@router.post("/ping", include_in_schema=False)
@router.get("/ping", tags=["service"])
async def ping(request: Request) -> dict[str, str]:
    """Alias of `/health`, used by hosting services."""
    return await health(request)


@router.get("/load", tags=["service"], responses=UNKNOWN_MODEL)
async def load(request: Request, model: str | None = None) -> dict[str, int]:
    """Returns the number of requests in flight, for one model or in total."""
    states = get_app_states(request) if model is None else [get_app_state(request, model)]
    return {"server_load": sum(len(state.engine_client.in_flight) for state in states)}


@router.head("/ready", include_in_schema=False)
@router.get("/ready", tags=["service"], responses={503: ERROR_RESPONSES[503], **UNKNOWN_MODEL})
async def ready(request: Request, model: str | None = None) -> dict[str, str]:
    """Readiness probe: 200 if requests are accepted, else 503 with the reason.

    With `model`, that model must be loaded; without it, all models that are loaded at startup.
    """
    states = get_app_states(request) if model is None else [get_app_state(request, model)]
    for state in states:
        is_ending = state.engine_client.lifecycle.phase in (Phase.DRAINING, Phase.FAILED)
        if model is not None or state.engine.spec.is_pinned or is_ending:
            state.engine_client.check_ready()
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
    clients = [state.engine_client for state in get_app_states(request)]
    stats = {client.settings.model_name: client.stats for client in clients}
    memory = {
        state.settings.model_name: state.engine.memory_bytes
        for state in get_app_states(request)
        if state.engine.is_loaded
    }
    return Response(clients[0].metrics.render(stats, memory), media_type=CONTENT_TYPE_LATEST)


@router.head("/", include_in_schema=False)
@router.head("/api/hello", include_in_schema=False)
async def head() -> Response:
    """Connectivity check used by Anthropic's clients."""
    return Response()


@router.head("/v1/models", include_in_schema=False)
@router.get("/v1/models", tags=["OpenAI"])
async def models(request: Request) -> dict[str, Any]:
    """Lists models and adapters, in OpenAI's and in Codex's format (`models`)."""
    listed = [_describe(name, state) for state in get_app_states(request) for name in state.names]
    page = {"first_id": listed[0]["id"], "last_id": listed[-1]["id"], "has_more": False}
    codex_models = [{**model, "slug": model["id"]} for model in listed]
    return {"object": "list", "data": listed, "models": codex_models, **page}


def _describe(name: str, server: AppState) -> dict[str, Any]:
    is_adapter = name in server.settings.adapter_names
    model: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": server.created,
        "owned_by": "tiny-llm",
        "root": name if is_adapter else server.settings.model_name,
        "parent": server.settings.model_name if is_adapter else None,
        "permission": [],
        "type": "model",
        "display_name": name,
        "loaded": server.engine_client.lifecycle.phase is Phase.READY,
        "task": server.engine.spec.task,
        "created_at": datetime.fromtimestamp(server.created, UTC).isoformat(),
    }
    if server.engine_client.engine_info is not None:
        model["max_model_len"] = server.engine_client.max_seq_len
    return model


@router.get("/v1/models/{name:path}", tags=["OpenAI"], responses=UNKNOWN_MODEL)
async def model(name: str, request: Request) -> dict[str, Any]:
    """Returns a served model in OpenAI's format."""
    return _describe(name, get_app_state(request, name))
