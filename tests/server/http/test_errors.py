"""Errors in each protocol's format, with a reason for unsupported fields."""

import httpx2
import pytest

from tiny_llm.server.http.errors import ERROR_TYPES, ApiError

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


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
