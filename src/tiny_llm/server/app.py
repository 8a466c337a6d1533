"""ASGI application: middleware, routers, error handlers."""

from importlib.metadata import version
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from .anthropic import messages
from .context import AppState
from .http.errors import ApiError, internal_error
from .http.middleware import ApiKeyMiddleware, BodyLimitMiddleware, HostMiddleware
from .http.validation import validation_error
from .openai import chat, completions, responses
from .ops import engine_view, health, tokenize, web_ui


def build_app(server: AppState) -> ASGIApp:
    """Builds the ASGI application: FastAPI behind the middleware of `http/middleware.py`."""
    settings = server.settings
    app: ASGIApp = BodyLimitMiddleware(_build_fastapi(server), settings.max_body_bytes)
    if settings.api_key is not None:
        app = ApiKeyMiddleware(app, settings.api_key)
    else:
        app = HostMiddleware(app, settings.allowed_hosts)
    if settings.cors_origins:
        app = CORSMiddleware(
            app,
            allow_origins=list(settings.cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
        )
    return app


def _build_fastapi(server: AppState) -> FastAPI:
    """Builds the FastAPI application with all routers and error handlers."""
    app = FastAPI(
        title="tiny-llm",
        version=version("tiny-llm"),
        description="OpenAI- and Anthropic-compatible API of the tiny-llm engine.",
        docs_url=None,  # FastAPI's pages load scripts from a CDN; `web_ui` serves /docs
        redoc_url=None,
    )
    app.state.server = server
    for module in (health, tokenize, chat, completions, responses, messages, engine_view, web_ui):
        app.include_router(module.router)
    app.router.routes.append(web_ui.static_files)
    app.add_exception_handler(ApiError, _handle_api_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(Exception, _handle_unexpected_error)
    _remove_422_responses(app.openapi())
    return app


def _remove_422_responses(document: dict[str, Any]) -> None:
    """Removes the 422 responses that FastAPI documents; validation errors are 400 here."""
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)


async def _handle_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response(request.url.path)


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    """Handles invalid bodies: 415 for a content type other than JSON, else 400."""
    assert isinstance(error, RequestValidationError)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and kind != "application/json" and not kind.endswith("+json"):
        reason = f"Content-Type must be application/json, got '{kind[:100]}'."
        return ApiError(415, reason).response(request.url.path)
    return validation_error(error.errors()).response(request.url.path)


async def _handle_http_error(request: Request, error: Exception) -> Response:
    """Handles Starlette's errors: unknown path, wrong method, malformed JSON."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    sentences = {
        400: "The body is not valid JSON.",
        404: "Path not found; /docs lists the available paths.",
        405: f"{request.method} is not allowed for this path; /docs lists the allowed methods.",
    }
    message = sentences.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, message, headers=error.headers).response(path)


async def _handle_unexpected_error(request: Request, error: Exception) -> Response:
    return internal_error(request.method, request.url.path, error)
