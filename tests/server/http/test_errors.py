"""Errors in each protocol's format, with a reason for unsupported fields."""

from inspect import signature

import anthropic
import httpx2
import openai
import pytest

from tiny_llm.server.anthropic.messages_schema import CountTokensRequest, MessagesRequest
from tiny_llm.server.http.errors import ERROR_TYPES, ApiError
from tiny_llm.server.http.unsupported import FIELD_REASONS
from tiny_llm.server.openai.chat_schema import ChatCompletionRequest
from tiny_llm.server.openai.completions import CompletionRequest
from tiny_llm.server.openai.responses_schema import ResponsesRequest

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
QUESTION = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/responses", MESSAGES])
@pytest.mark.parametrize(
    ("method", "path_suffix", "kind", "status"),
    [
        ("POST", "/nothing", "application/json", 404),
        ("GET", "", "application/json", 405),
        ("POST", "", "text/plain", 415),
        ("POST", "", "application/json", 400),
    ],
)
def test_invalid_requests_have_the_protocols_error_format(
    server, path, method, path_suffix, kind, status
):
    headers = {"content-type": kind}
    response = httpx2.request(
        method, server.url + path + path_suffix, headers=headers, content=b"{"
    )
    assert response.status_code == status
    body = response.json()
    openai_type, anthropic_type = ERROR_TYPES[status]
    if path == MESSAGES:
        assert (body["type"], body["error"]["type"]) == ("error", anthropic_type)
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["type"] == openai_type
    assert body["error"]["message"].endswith(".")


@pytest.mark.parametrize("status", [413, 429, 503])
def test_every_status_has_the_protocols_error_type(status):
    error = ApiError(status, "No.", code="a_code", headers={"Retry-After": "1"})
    assert error.body(CHAT)["error"]["code"] == "a_code"
    assert error.body(MESSAGES)["error"]["details"] == {"error_code": "a_code"}
    assert error.response(MESSAGES).headers["retry-after"] == "1"


@pytest.mark.parametrize("field", FIELD_REASONS)
def test_unsupported_field_is_rejected_with_its_reason(server, field):
    rejected = server.post(CHAT, {"messages": QUESTION, field: {}})
    assert rejected.status_code == 400
    assert (
        rejected.json()["error"]["message"] == f"{field} is not supported: {FIELD_REASONS[field]}."
    )


def test_every_field_of_the_official_clients_is_known():
    """Each field is supported or rejected with a reason."""
    chat_client = openai.OpenAI(api_key="none")
    claude = anthropic.Anthropic(api_key="none")
    client_fields = {"self", "extra_headers", "extra_query", "extra_body", "timeout", "betas"}
    client_fields |= {"user_profile_id"}
    for send, body in (
        (chat_client.chat.completions.create, ChatCompletionRequest),
        (chat_client.completions.create, CompletionRequest),
        (chat_client.responses.create, ResponsesRequest),
        (claude.messages.create, MessagesRequest),
        (claude.beta.messages.create, MessagesRequest),
        (claude.messages.count_tokens, CountTokensRequest),
    ):
        supported = {field.alias or name for name, field in body.model_fields.items()}
        assert set(signature(send).parameters) - client_fields - supported <= set(FIELD_REASONS)
