"""ASGI application: middleware, routers, error handlers."""

import logging
from functools import partial
from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from . import operations
from .anthropic import messages
from .http.errors import INTERNAL_ERROR, ApiError
from .http.middleware import AccessLogMiddleware, AccessMiddleware, BodyMiddleware
from .http.validation import validation_error
from .models.model_registry import LeaseMiddleware, ModelRegistry
from .models.requests import max_body_bytes
from .openai import chat, completions, embeddings, responses, tokenization
from .openai.response_store import ResponseStore

log = logging.getLogger("tiny_llm.server")


def build_app(registry: ModelRegistry) -> ASGIApp:
    settings = registry.settings
    app: ASGIApp
    app = fastapi = _build_fastapi(registry)
    if registry.is_on_demand:
        app = LeaseMiddleware(app, registry)
    app = BodyMiddleware(app, partial(max_body_bytes, registry.models), settings.body_timeout)
    app = AccessMiddleware(app, settings.api_key, settings.allowed_hosts)
    if settings.cors_origins:
        app = CORSMiddleware(
            app, allow_origins=list(settings.cors_origins), allow_methods=["*"], allow_headers=["*"]
        )
    count = registry.models[0].metrics.count_http_request
    return AccessLogMiddleware(app, count, fastapi.openapi()["paths"], settings)


def _build_fastapi(registry: ModelRegistry) -> FastAPI:
    app = FastAPI(
        title="tiny-llm",
        version=version("tiny-llm"),
        description="OpenAI- and Anthropic-compatible API of the tiny-llm engine.",
        # `operations` serves /docs instead, because FastAPI's pages load scripts from a CDN.
        docs_url=None,
        redoc_url=None,
    )
    app.state.registry = registry
    app.state.response_store = ResponseStore(registry.settings.response_store)
    openai = (chat, completions, responses, embeddings, tokenization)
    for module in (operations, *openai, messages):
        app.include_router(module.router)
    app.router.routes.append(operations.static_files)
    app.add_exception_handler(ApiError, _handle_api_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(Exception, _handle_unexpected_error)
    _correct_openapi(app.openapi(), registry.settings.strict_fields)
    return app


def _correct_openapi(document: dict[str, Any], strict_fields: bool) -> None:
    """Removes FastAPI's 422 responses: validation errors are 400 here. Applies `strict_fields`."""
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
    for schema in document["components"]["schemas"].values() if strict_fields else ():
        if schema.get("additionalProperties") is True:
            schema["additionalProperties"] = False


async def _handle_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response(request.url.path)


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and kind != "application/json" and not kind.endswith("+json"):
        reason = f"Content-Type must be application/json, got '{kind[:100]}'."
        return ApiError(415, reason).response(request.url.path)
    return validation_error(error.errors()).response(request.url.path)


async def _handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    sentences = {
        400: "The body is not valid JSON.",
        404: _not_found_message(request),
        405: f"{request.method} is not allowed for this path; /docs lists the allowed methods.",
    }
    message = sentences.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, message, headers=error.headers).response(path)


def _not_found_message(request: Request) -> str:
    path = request.url.path
    known = request.app.openapi()["paths"]
    for intended, advice in (
        (path.removeprefix("/v1"), "end the client's base URL without /v1"),
        ("/v1" + path, "end the client's base URL with /v1"),
        (path.replace("//", "/"), "end the client's base URL without a slash"),
    ):
        if intended != path and intended in known:
            return f"Path not found; use {intended}: {advice}."
    return "Path not found; /docs lists the available paths."


async def _handle_unexpected_error(request: Request, error: Exception) -> Response:
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return ApiError(500, INTERNAL_ERROR).response(request.url.path)
