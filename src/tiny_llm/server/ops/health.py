"""Health, readiness, load, version, metrics and model endpoints."""

from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from ..http.errors import ERROR_RESPONSES
from ..models.requests import get_model, get_models
from ..models.served_model import Phase, ServedModel

UNKNOWN_MODEL: dict[int | str, dict[str, Any]] = {404: ERROR_RESPONSES[404]}
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
