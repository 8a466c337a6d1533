"""Service endpoints: health, load, version, metrics, models, tokenization."""

from datetime import UTC, datetime
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field
from starlette.responses import Response

from ..http.errors import ERROR_RESPONSES, JsonResponse, bad_request
from ..models.requests import get_model, get_models, use_model
from ..models.served_model import Phase, ServedModel
from ..openai.chat_schema import ChatMessage, Tool, check_continuation
from ..protocol.prompts import PromptRenderer
from ..protocol.request_fields import BoundedList, JsonObject, RequestBody, ShortList, TokenIds

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


class TokenizeRequest(RequestBody):
    """Body of a tokenization request: either `prompt` or `messages`."""

    prompt: str | None = None
    messages: Annotated[BoundedList[ChatMessage], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None  # default: true for text, false for chat
    add_generation_prompt: bool | None = None  # default: true unless continue_final_message
    continue_final_message: bool = False
    chat_template_kwargs: JsonObject | None = None
    tools: ShortList[Tool] | None = None
    return_token_strs: bool | None = None

    def encode(self, prompts: PromptRenderer) -> list[int]:
        if (self.prompt is None) == (self.messages is None):
            raise bad_request("Exactly one of prompt and messages must be given.", "prompt")
        if self.prompt is not None:
            return prompts.encode(self.prompt, self.add_special_tokens is not False)
        check_continuation(self.continue_final_message, self.add_generation_prompt)
        messages = [message.to_template(index) for index, message in enumerate(self.messages or ())]
        tools = [tool.model_dump(exclude_none=True) for tool in self.tools or ()]
        chat = prompts.encode_chat(
            messages,
            tools,
            self.chat_template_kwargs or {},
            self.add_generation_prompt is not False,
            self.continue_final_message,
            bool(self.add_special_tokens),
        )
        return chat.token_ids


class DetokenizeRequest(RequestBody):
    tokens: TokenIds


@router.post("/tokenize", tags=["service"], responses=ERROR_RESPONSES)
async def tokenize(body: TokenizeRequest, request: Request) -> dict[str, Any]:
    """Tokenizes text, or a conversation rendered with the chat template."""
    model = await use_model(request, body)
    prompts = model.prompts
    body.chat_template_kwargs = prompts.used_template_kwargs(body.chat_template_kwargs)
    ids = await prompts.run(body.encode, prompts)
    return {
        "tokens": ids,
        "token_strs": prompts.token_strings(ids) if body.return_token_strs else None,
        "count": len(ids),
        "max_model_len": model.max_seq_len,
    }


@router.post("/detokenize", tags=["service"], responses=ERROR_RESPONSES)
async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
    """Converts token ids to text."""
    model = await use_model(request, body)
    model.check_token_ids("the prompt", body.tokens)
    return JsonResponse({"prompt": await model.prompts.run(model.prompts.decode, body.tokens)})
