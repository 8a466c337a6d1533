"""Contract of invalid requests: endpoint, changed fields, sentence; errors' formats."""

import json
import re

import httpx2
import pytest

from tests.server.protocols import CHAT, MESSAGES, PATHS, RESPONSES, small_body
from tests.support import function_tool
from tiny_llm.server.http.errors import ERROR_TYPES, ApiError
from tiny_llm.server.http.unsupported import FIELD_REASONS

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
CALLED = [{"type": "function", "name": "g"}]
ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": CALLED}


def said(*content, **message):
    """`messages` with one message, by default with a user's content parts."""
    return {"messages": [message or {"role": "user", "content": list(content)}]}


def given(*items):
    return {"input": list(items)}


def deep(depth):
    return json.loads('{"items": ' * depth + "{}" + "}" * depth)


def kwargs(**fields):
    return {"chat_template_kwargs": fields}


TEXT_ONLY = "; this model accepts text only"
FUNCTIONS_ONLY = "the model calls functions, which the client runs"
LONG = said(role="user", content="word " * 3000)
CUSTOM = {"type": "custom", "custom": {"name": "f"}}
CHAT_ALLOWED = {"mode": "auto", "tools": [function_tool("g")]}
CHAT_ALLOWED = {"type": "allowed_tools", "allowed_tools": CHAT_ALLOWED}
JSON_FORMAT = {"type": "json_schema", "name": "a"}
DOCUMENT = {"type": "document", "source": {"type": "base64"}}
MCP = {"type": "url", "name": "a", "url": "https://a.example"}
BOTH_FORMATS = {"output_format": {"type": "json_schema", "schema": {}}}
BOTH_FORMATS |= MESSAGES.response_format({})
SENTENCES = {
    "/v1/completions": [
        ({"suffix": "."}, "suffix is not supported"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 1}, "prompt must be a string, got 1."),
        ({"prompt": ""}, "The prompt is empty"),
        ({"prompt": [4096]}, "token ids in the prompt must be from 0 to 4095, got 4096"),
        ({"prompt": [1] * 2048}, "2048 tokens"),
        ({"best_of": 3}, "best_of must equal n"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, or 0 with echo."),
        ({"logprobs": 21}, "logprobs must be at most 20, got 21"),
    ],
    CHAT.path: [
        ({"messages": 5}, "messages must be a list, got 5."),
        ({"messages": None}, "messages must be a list, got null."),
        ({"messages": []}, "messages must have 1 or more elements, got 0."),
        ({"messages": [5]}, "messages[0] must be an object, got 5."),
        (said(role="user"), "messages[0] has no content"),
        (said({"text": "Why?"}), "messages[0].content[0].type is required."),
        (said({"type": "text"}), "messages[0].content[0].text is required."),
        (
            said({"type": "image_url"}),
            f"messages[0].content[0] has the type 'image_url'{TEXT_ONLY}.",
        ),
        (LONG, "3014 tokens > 2047 maximum; this model's maximum context length is 2048"),
        ({"temperature": "hot"}, "temperature must be a number, got 'hot'."),
        ({"temperature": -1}, "temperature must be "),
        ({"n": 0}, "n must be at least 1, got 0."),
        ({"n": 1.5}, "n must be an integer, got 1.5."),
        ({"n": 2, "temperature": 0}, "n must be 1 at temperature 0.0, got 2"),
        ({"n": 1000}, "this server accepts at most"),
        ({"logit_bias": [1]}, "logit_bias must be an object, got a list."),
        ({"logit_bias": {"4096": 1}}, "token ids in logit_bias must be from 0 to 4095, got 4096"),
        ({"logit_bias": {"Paris": 1}}, "logit_bias keys must be token ids, got 'Paris'"),
        ({"user": {"a": "x" * 10**6}}, "user must be a string, got an object."),
        ({"seed": "x" * 10**6}, f"seed must be an integer, got '{'x' * 56}…."),
        ({"stop": [1]}, "stop[0] must be a string, got 1"),
        ({"stream_options": {}}, "stream_options requires stream"),
        ({"stream": None, "logprobs": "maybe"}, "logprobs must be true or false, got 'maybe'."),
        ({"top_logprobs": 2}, "top_logprobs requires logprobs: true."),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs must be at most 20, got 21."),
        ({"reasoning_effort": True}, "got true."),
        ({"tools": [FUNCTION]}, "tools[0].function is required."),
        ({"tools": [CUSTOM]}, f"tools[0].type must be 'function', got 'custom': {FUNCTIONS_ONLY}."),
        ({"tool_choice": "required"}, "tools is empty."),
        ({"tool_choice": {"type": "x"}}, "tool_choice.type must be "),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice.function is required."),
        (
            {"tools": [function_tool("f")], "tool_choice": CHAT_ALLOWED},
            "tool_choice allows 'g', which is not in tools.",
        ),
        ({"response_format": {"type": "json_schema"}}, "json_schema.schema is required"),
        ({"structured_outputs": {}}, "must have exactly one of"),
        ({"structured_outputs": {"regex": "("}}, "invalid regular expression: unclosed group"),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "cannot be combined with"),
        ({"structured_outputs": {"json": deep(200)}}, "nested more than 100 levels deep"),
        (CHAT.response_format(deep(440)), "nested more than 100 levels deep"),
        ({"continue_final_message": True}, "only if it is an assistant message with text."),
        ({"continue_final_message": True, "add_generation_prompt": True}, "mutually exclusive"),
        (kwargs(messages=[]), "chat_template_kwargs must not contain 'messages'."),
        (
            kwargs(enable_thinking="no"),
            "chat_template_kwargs.enable_thinking must be true or false, got 'no'.",
        ),
        *(({name: {}}, f"{name} is not supported: {why}.") for name, why in FIELD_REASONS.items()),
    ],
    RESPONSES.path: [
        ({"previous_response_id": "resp_1"}, "responses are not stored"),
        (given(), "input must contain at least one message."),
        (given({"role": "robot", "content": ""}), "input[0].role must be"),
        (
            given({"role": "user", "content": [{"type": "input_image", "image_url": "data:,x"}]}),
            "the model accepts text only.",
        ),
        (given({"type": "item_reference", "id": "msg_1"}), "references a stored item"),
        (given({"type": "function_call_output"}), "input[0].call_id must be a string."),
        ({"text": {"verbosity": "high"}}, "the model has no verbosity setting"),
        ({"text": {"format": JSON_FORMAT}}, "text.format.schema is required."),
        ({"stream_options": {}}, "stream_options requires stream"),
        ({"background": True}, "background is not supported"),
        ({"tool_choice": "required"}, "tools is empty."),
        ({"tools": [FUNCTION], "tool_choice": "always"}, "tool_choice must be 'auto'"),
        ({"tools": [FUNCTION], "tool_choice": {**ALLOWED, "tools": "x"}}, "requires mode"),
        ({"tools": [FUNCTION], "tool_choice": ALLOWED}, "which is not in tools."),
        ({"tools": [{**FUNCTION, "name": ""}]}, "tools[0].name must have 1 or more characters"),
        (
            {"tools": [{**FUNCTION, "strict": "no"}]},
            "tools[0].strict must be true or false, got 'no'",
        ),
        ({"tools": [{**FUNCTION, "parameters": "x"}]}, "tools[0].parameters must be an object"),
    ],
    MESSAGES.path: [
        ({"max_tokens": -1}, "max_tokens must be at least 0, got -1"),
        ({"messages": []}, "messages must have 1 or more elements, got 0"),
        ({"tool_choice": {"type": "any"}}, "tool_choice requires tools, but tools is empty."),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "got 'x'"),
        (said({"type": "image"}), f"content[0] has the type 'image'{TEXT_ONLY}"),
        (said(DOCUMENT), f"content[0].source has the type 'base64'{TEXT_ONLY}"),
        ({"output_config": {"effort": "much"}}, "output_config.effort must be 'none', "),
        ({"mcp_servers": [MCP]}, "this server does not run tools"),
        (BOTH_FORMATS, "output_format and output_config.format"),
    ],
    "/tokenize": [
        ({"prompt": None}, "Exactly one of prompt and messages"),
        (
            said(role="user", content="a") | kwargs(messages=[]) | {"prompt": None},
            "chat_template_kwargs must not contain 'messages'.",
        ),
    ],
}


@pytest.mark.parametrize(
    ("path", "change", "sentence"),
    [(path, *row) for path, rows in SENTENCES.items() for row in rows],
    ids=lambda value: value[:50] if isinstance(value, str) else "",
)
def test_invalid_request_is_400(server, path, change, sentence):
    body = small_body(path) if path in PATHS else {"prompt": "a"}
    response = server.post(path, {**body, **change})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert sentence in error["message"]
    assert error["message"].endswith(".")
    assert "input should" not in error["message"]
    assert error["type"] == "invalid_request_error"


INVALID = {
    b"": "body is required.",
    b"{": "is not valid JSON",
    b"\xff": "",
    b"[" * 100_000: "",
    b"1": "",
    b'{"messages": [{"role": "user", "content": "\\ud800"}], "\\ud800": 1}': "",
    b'{"prompt": "\\ud800"}': "an unpaired surrogate|messages is required",
    b'{"seed": ' + b"9" * 5000 + b"}": "",
}


def test_errors_are_json_for_any_body(server):
    for content, sentence in INVALID.items():
        for path in (CHAT.path, "/v1/completions"):
            response = server.send(path, content)
            assert response.status_code == 400, content[:20]
            message = response.json()["error"]["message"]
            assert message.endswith(".")
            assert re.search(sentence, message)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("method", "path_suffix", "kind", "status"),
    [
        ("POST", "/nothing", "application/json", 404),
        ("GET", "", "application/json", 405),
        ("POST", "", "text/plain", 415),
        ("POST", "", "application/json", 400),
    ],
)
def test_error_has_the_protocols_format(server, path, method, path_suffix, kind, status):
    headers, url = {"content-type": kind}, server.url + path + path_suffix
    response = httpx2.request(method, url, headers=headers, content=b"{")
    assert response.status_code == status
    body = response.json()
    openai_type, anthropic_type = ERROR_TYPES[status]
    if path == MESSAGES.path:
        assert (body["type"], body["error"]["type"]) == ("error", anthropic_type)
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}
        assert body["error"]["type"] == openai_type
    assert body["error"]["message"].endswith(".")


@pytest.mark.parametrize("status", [413, 429, 503])
def test_code_and_headers_in_each_protocol(status):
    error = ApiError(status, "No.", code="a_code", headers={"Retry-After": "1"})
    assert error.body(CHAT.path)["error"]["code"] == "a_code"
    assert error.body(MESSAGES.path)["error"]["details"] == {"error_code": "a_code"}
    assert error.response(MESSAGES.path).headers["retry-after"] == "1"
