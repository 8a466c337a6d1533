"""What is not a model's answer: is the server alive, is it ready, which model, how much work."""

from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field
from starlette.responses import Response

from .documents import ERRORS
from .errors import JsonResponse, refused
from .sampling import Body, TokenId
from .server import server_of

router = APIRouter()


@router.get("/health", tags=["service"])
async def health() -> dict[str, str]:
    """Says that the process is alive. The event loop answers; the engine is not asked."""
    return {"status": "ok"}


@router.get("/ready", tags=["service"], responses={503: ERRORS[503]})
async def ready(request: Request) -> dict[str, str]:
    """Says whether requests are taken; if not, 503 and the reason."""
    bridge = server_of(request).bridge
    bridge.check_ready()
    return {"status": "ready"}


@router.get("/version", tags=["service"])
async def get_version() -> dict[str, str]:
    """The version of tiny-llm."""
    return {"version": version("tiny-llm")}


@router.get("/metrics", tags=["service"], response_class=Response)
async def metrics(request: Request) -> Response:
    """Counts and times, for Prometheus."""
    bridge = server_of(request).bridge
    return Response(bridge.metrics.page(bridge.gauges), media_type=CONTENT_TYPE_LATEST)


@router.head("/", include_in_schema=False)
async def head() -> Response:
    """Clients of Anthropic's protocol ask so whether there is a server."""
    return Response()


@router.get("/v1/models", tags=["OpenAI"])
async def models(request: Request) -> dict[str, Any]:
    """The model, as OpenAI lists it; Codex reads `models`, too."""
    server = server_of(request)
    model: dict[str, Any] = {
        "id": server.settings.model_name,
        "object": "model",
        "created": server.created,
        "owned_by": "tiny-llm",
        "type": "model",
        "display_name": server.settings.model_name,
    }
    if server.bridge.loaded is not None:
        model["max_model_len"] = server.context
    listed = [{**model, "slug": server.settings.model_name}]
    return {"object": "list", "data": [model], "models": listed, "has_more": False}


class TokenizeBody(Body):
    """A text."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool = True


class DetokenizeBody(Body):
    """Token ids."""

    tokens: Annotated[list[TokenId], Field(max_length=1_000_000)]
    model: str | None = None


@router.post("/tokenize", tags=["service"], responses=ERRORS)
async def tokenize(body: TokenizeBody, request: Request) -> dict[str, Any]:
    """A text's tokens."""
    server = server_of(request)
    server.check_model(body.model)
    prompts = server.prompts
    ids = await prompts.run(prompts.encode, body.prompt, body.add_special_tokens)
    return {"tokens": ids, "count": len(ids), "max_model_len": server.context}


@router.post("/detokenize", tags=["service"], responses=ERRORS)
async def detokenize(body: DetokenizeBody, request: Request) -> Response:
    """The text of tokens."""
    server = server_of(request)
    server.check_model(body.model)
    prompts = server.prompts
    check_token_ids(server.bridge.loaded, body.tokens)
    return JsonResponse({"prompt": await prompts.run(prompts.decode, body.tokens)})


def check_token_ids(loaded: Any, tokens: list[int]) -> None:
    """Refuses tokens that the model does not have.

    Raises:
        ApiError: 400.
    """
    for token in tokens:
        if token >= loaded.vocab_size:
            raise refused(
                f"There is no token {token}; the model's are 0 to {loaded.vocab_size - 1}."
            )


@router.get("/v1/models/{name:path}", tags=["OpenAI"], responses={404: ERRORS[404]})
async def model(name: str, request: Request) -> dict[str, Any]:
    """One model."""
    server_of(request).check_model(name)
    listed = await models(request)
    found: dict[str, Any] = listed["data"][0]
    return found
