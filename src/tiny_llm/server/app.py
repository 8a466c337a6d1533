"""The web application: endpoints, guards, and errors in the form of their protocol.

A request passes the guards, and then either the short way of `direct.py` or FastAPI's.
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

from . import chat, completions, engine_view, messages, page, responses, service, tokenize
from .direct import Direct, Endpoint
from .errors import ApiError, our_fault
from .guards import CheckHost, LimitBody, RequireKey
from .server import Server
from .validation import refusal

DIRECT: Mapping[str, Endpoint] = {
    chat.PATH: chat.create_chat_completion,
    completions.PATH: completions.create_completion,
    messages.PATH: messages.create_message,
    responses.PATH: responses.create_response,
}


def make_app(server: Server) -> ASGIApp:
    """The application for a server."""
    settings = server.settings
    guarded: ASGIApp = LimitBody(Direct(_endpoints(server), DIRECT), settings.max_body_bytes)
    if settings.api_key is not None:
        guarded = RequireKey(guarded, settings.api_key)
    else:
        guarded = CheckHost(guarded, settings.allowed_hosts)
    if settings.cors_origins:
        guarded = CORSMiddleware(
            guarded,
            allow_origins=list(settings.cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
        )
    return guarded


def _endpoints(server: Server) -> FastAPI:
    """All endpoints, their document, and what is said of errors."""
    app = FastAPI(
        title="tiny-llm",
        version=version("tiny-llm"),
        description="OpenAI's and Anthropic's protocols in front of the tiny-llm engine.",
        docs_url=None,  # FastAPI's own pages load their parts from another host
        redoc_url=None,
    )
    app.state.server = server
    for module in (service, tokenize, chat, completions, responses, messages, engine_view, page):
        app.include_router(module.router)
    app.router.routes.append(page.files)
    app.add_exception_handler(ApiError, _tell)
    app.add_exception_handler(RequestValidationError, _tell_validation)
    app.add_exception_handler(HTTPException, _tell_http)
    app.add_exception_handler(Exception, _tell_failure)
    _correct_document(app.openapi())
    return app


def _correct_document(document: dict[str, Any]) -> None:
    """Leaves out 422, which FastAPI writes into its document and this server never answers."""
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)


async def _tell(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response(request.url.path)


async def _tell_validation(request: Request, error: Exception) -> Response:
    """A body that is refused: 415 if it is said to be no JSON; else 400, where FastAPI says 422."""
    assert isinstance(error, RequestValidationError)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and kind != "application/json" and not kind.endswith("+json"):
        reason = f"The Content-Type is '{kind[:100]}'; it must be application/json."
        return ApiError(415, reason).response(request.url.path)
    return refusal(error.errors()).response(request.url.path)


async def _tell_http(request: Request, error: Exception) -> Response:
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


async def _tell_failure(request: Request, error: Exception) -> Response:
    return our_fault(request.method, request.url.path, error)
