"""The web application: endpoints, guards, and errors in the form of their protocol.

A request passes the guards, and then either the short way of `fast_path.py` or FastAPI's.
"""

from collections.abc import Mapping
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
from .http.fast_path import Endpoint, FastPath
from .http.middleware import ApiKeyMiddleware, BodyLimitMiddleware, HostMiddleware
from .http.validation import validation_error
from .openai import chat, completions, responses
from .ops import engine_view, health, tokenize, web_ui

FAST_PATH_ENDPOINTS: Mapping[str, Endpoint] = {
    chat.PATH: chat.create_chat_completion,
    completions.PATH: completions.create_completion,
    messages.PATH: messages.create_message,
    responses.PATH: responses.create_response,
}


def build_app(server: AppState) -> ASGIApp:
    """The application for a server."""
    settings = server.settings
    guarded: ASGIApp = BodyLimitMiddleware(
        FastPath(_build_fastapi(server), FAST_PATH_ENDPOINTS), settings.max_body_bytes
    )
    if settings.api_key is not None:
        guarded = ApiKeyMiddleware(guarded, settings.api_key)
    else:
        guarded = HostMiddleware(guarded, settings.allowed_hosts)
    if settings.cors_origins:
        guarded = CORSMiddleware(
            guarded,
            allow_origins=list(settings.cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
        )
    return guarded


def _build_fastapi(server: AppState) -> FastAPI:
    """All endpoints, their document, and what is said of errors."""
    app = FastAPI(
        title="tiny-llm",
        version=version("tiny-llm"),
        description="OpenAI's and Anthropic's protocols in front of the tiny-llm engine.",
        docs_url=None,  # FastAPI's own pages load their parts from another host
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
    """Leaves out 422, which FastAPI writes into its document and this server never answers."""
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)


async def _handle_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response(request.url.path)


async def _handle_validation_error(request: Request, error: Exception) -> Response:
    """A body that is refused: 415 if it is said to be no JSON; else 400, where FastAPI says 422."""
    assert isinstance(error, RequestValidationError)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and kind != "application/json" and not kind.endswith("+json"):
        reason = f"The Content-Type is '{kind[:100]}'; it must be application/json."
        return ApiError(415, reason).response(request.url.path)
    return validation_error(error.errors()).response(request.url.path)


async def _handle_http_error(request: Request, error: Exception) -> Response:
    """What the framework refuses: an unknown path, another method, a body that is not JSON."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    sentences = {
        400: "The body is not JSON.",
        404: "There is no such path here; /docs lists those that there are.",
        405: f"{request.method} is not a method of this path; /docs lists those that are.",
    }
    message = sentences.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, message, headers=error.headers).response(path)


async def _handle_unexpected_error(request: Request, error: Exception) -> Response:
    return internal_error(request.method, request.url.path, error)
