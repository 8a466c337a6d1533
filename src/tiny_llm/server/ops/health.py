"""Health, readiness, load, version, metrics and model endpoints."""

from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from ..context import get_app_state
from ..http.openapi import ERROR_RESPONSES

router = APIRouter()


@router.head("/health", include_in_schema=False)
@router.get("/health", tags=["service"])
async def health() -> dict[str, str]:
    """Liveness probe. Always 200, whatever the state of the engine."""
    return {"status": "ok"}


@router.post("/ping", include_in_schema=False)
@router.get("/ping", tags=["service"])
async def ping() -> dict[str, str]:
    """Alias of `/health` for hosting services."""
    return await health()


@router.get("/load", tags=["service"])
async def load(request: Request) -> dict[str, int]:
    """Returns the number of requests in flight, for load balancers."""
    return {"server_load": len(get_app_state(request).engine_client.in_flight)}


@router.head("/ready", include_in_schema=False)
@router.get("/ready", tags=["service"], responses={503: ERROR_RESPONSES[503]})
async def ready(request: Request) -> dict[str, str]:
    """Readiness probe: 200 if new requests are accepted, else 503 with the reason."""
    engine_client = get_app_state(request).engine_client
    engine_client.check_ready()
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
    engine_client = get_app_state(request).engine_client
    return Response(
        engine_client.metrics.render(engine_client.stats), media_type=CONTENT_TYPE_LATEST
    )


@router.head("/", include_in_schema=False)
async def head() -> Response:
    """Connectivity check of Anthropic's clients."""
    return Response()


@router.head("/v1/models", include_in_schema=False)
@router.get("/v1/models", tags=["OpenAI"])
async def models(request: Request) -> dict[str, Any]:
    """Lists the served model, in OpenAI's format (`data`) and Codex's (`models`)."""
    server = get_app_state(request)
    model: dict[str, Any] = {
        "id": server.settings.model_name,
        "object": "model",
        "created": server.created,
        "owned_by": "tiny-llm",
        "root": server.settings.model_name,
        "parent": None,
        "permission": [],
        "type": "model",
        "display_name": server.settings.model_name,
        "created_at": datetime.fromtimestamp(server.created, UTC).isoformat(),
    }
    if server.engine_client.engine_info is not None:
        model["max_model_len"] = server.max_model_len
    codex_models = [{**model, "slug": server.settings.model_name}]
    name = server.settings.model_name
    page = {"first_id": name, "last_id": name, "has_more": False}
    return {"object": "list", "data": [model], "models": codex_models, **page}


@router.get("/v1/models/{name:path}", tags=["OpenAI"], responses={404: ERROR_RESPONSES[404]})
async def model(name: str, request: Request) -> dict[str, Any]:
    """Returns the served model in OpenAI's format."""
    get_app_state(request).check_model(name)
    listed = await models(request)
    served_model: dict[str, Any] = listed["data"][0]
    return served_model
