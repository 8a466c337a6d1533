"""Unknown fields are accepted, and named in the log and in a response header."""

import json

import pytest

from tests.server.protocols import PATHS, small_body
from tests.server.running_server import served
from tiny_llm.server.anthropic.messages_schema import MessagesRequest
from tiny_llm.server.http.errors import ACCESS_RECORD, AccessRecord
from tiny_llm.server.openai.chat_schema import ChatCompletionRequest
from tiny_llm.server.openai.responses_schema import ResponsesRequest
from tiny_llm.server.protocol import request_fields

HEADER = "x-tiny-llm-ignored-fields"
USER = {"role": "user", "content": "What is the capital of France?"}
DEEP = [{"type": "text", "text": "a", "deep": 1}]
RESULT = {"role": "user"}
RESULT["content"] = [{"type": "tool_result", "tool_use_id": "t", "content": DEEP}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BODIES = {path: small_body(path, max_tokens=1) for path in PATHS}
BODIES |= {"/v1/messages/count_tokens": {"messages": [USER]}, "/tokenize": {"prompt": "Paris"}}


def ignored(schema, body) -> list[str]:
    """Names of ignored fields, which are removed from the messages."""
    record = AccessRecord("/test")
    ACCESS_RECORD.set(record)
    request = schema.model_validate(body)
    assert not any(message.model_extra for message in getattr(request, "messages", ()))
    return list(record.ignored_fields)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_header_and_log_name_unknown_fields(server, path, stream):
    streams = {"stream": True} if stream and "count" not in path and path != "/tokenize" else {}
    body = {**BODIES[path], **streams, "vllm_xargs": {"a": 1}, "cache_salt": "x", "unset": None}
    for _ in range(2):
        response = server.post(path, body)
        assert response.status_code == 200, response.text
        assert response.headers[HEADER] == "vllm_xargs,cache_salt"
    missing = server.post(path, {**body, "model": "missing"})
    assert (missing.status_code, missing.headers[HEADER]) == (404, "vllm_xargs,cache_salt")
    assert HEADER not in server.post(path, BODIES[path]).headers
    lines = [line for line in server.lines if f"ignored fields of {path}: " in line]
    assert sum("vllm_xargs" in line for line in lines) == 1


def test_unknown_fields_do_not_change_the_prompt(server):
    path, body = "/v1/chat/completions", {**BODIES["/v1/chat/completions"], "tools": [TOOL]}
    body["return_token_ids"] = True
    plain = server.post(path, body).json()
    function = {**TOOL["function"], "secret": "x"}
    body |= {"tools": [{**TOOL, "function": function, "x": 1}], "messages": [{**USER, "y": 1}]}
    response = server.post(path, body)
    assert response.json()["prompt_token_ids"] == plain["prompt_token_ids"]
    assert response.headers[HEADER] == "messages[].y,tools[].x,tools[].function.secret"


@pytest.mark.parametrize(
    ("schema", "body", "expected"),
    [
        (
            ChatCompletionRequest,
            {
                "messages": [
                    {**USER, "content": [{"type": "text", "text": "a", "cache": 1}] * 3},
                    {"role": "assistant", "content": "b", "annotations": [], "audio": None, "z": 0},
                ],
                "metadata": {"free": {"form": 1}},
                "chat_template_kwargs": {"any": 1},
                "logit_bias": {"5": 1},
                "tools": [TOOL],
                "tool_choice": {"type": "function", "function": {"name": "f"}, "why": 1},
            },
            {"messages[].content[].cache", "messages[].z", "tool_choice.why"},
        ),
        (
            MessagesRequest,
            {
                "max_tokens": 1,
                "system": [{"type": "text", "text": "a", "cache_control": {}}],
                "messages": [{"role": "system", "clear_at": "never"}, RESULT],
                "thinking": {"type": "adaptive", "display": "summarized"},
            },
            {"messages[].clear_at", "messages[].content[].content[].deep", "system[].cache_control"}
            | {"thinking.display=summarized"},
        ),
        (
            ResponsesRequest,
            {
                "input": [
                    {**USER, "phase": "x", "content": [{"type": "input_text", "text": "", "b": 1}]},
                    {"type": "reasoning", "id": "rs", "summary": [], "status": "completed"},
                    {"type": "from the, future"},
                ],
                "tools": [
                    {"type": "web_search"},
                    {"type": "function", **TOOL["function"], "defer_loading": True},
                ],
                "include": ["reasoning.encrypted_content", "file_search_call.results"],
                "reasoning": {"summary": "detailed"},
                "text": {"verbosity": "low"},
            },
            {"reasoning.summary", "text.verbosity=low", "include[]=file_search_call.results"}
            | {"tools[].type=web_search", "tools[].defer_loading", "input[].phase"}
            | {"input[].content[].b", "input[].type=from%20the%2C%20future"},
        ),
    ],
    ids=["chat", "messages", "responses"],
)
def test_paths_of_nested_fields(schema, body, expected):
    assert sorted(ignored(schema, body)) == sorted(expected)  # each once


def test_names_are_bounded_and_escaped(monkeypatch, caplog):
    monkeypatch.setattr(request_fields, "_logged", set())
    monkeypatch.setattr(request_fields, "MAX_LOGGED_FIELDS", 40)
    hostile = {"a\r\nSet-Cookie: b": 1, "é\u2028,": 1, "\U0001f600" * 10**6: 1}
    message = {**USER, **{f"m{number}": 1 for number in range(2000)}}
    names = ignored(ChatCompletionRequest, {"messages": [message] * 5, **hostile})
    assert names[:2] == ["a%0D%0ASet-Cookie%3A%20b", "%C3%A9%E2%80%A8%2C"]
    assert len(names) == 32
    assert all(name.isascii() and len(name) <= 100 for name in names)
    for number in range(100):
        ignored(ChatCompletionRequest, {"messages": [USER], f"x{number}": 1})
    assert len(caplog.text) < 5000
    assert len(request_fields._logged) <= 40 + 32


strict_server = served("--strict-fields")


@pytest.mark.parametrize(
    ("path", "change", "field"),
    [
        (PATHS[1], {"temprature": 1}, "temprature"),
        (PATHS[1], {"messages": [{**USER, "Text": 1}]}, "messages[].Text"),
        ("/v1/completions", {"messages": [USER]}, "messages"),
        ("/v1/responses", {"tools": [{"type": "web_search"}]}, "tools[].type=web_search"),
        ("/v1/messages", {"containers": 1}, "containers"),
        ("/tokenize", {"nothing": 1}, "nothing"),
    ],
)
def test_strict_fields(strict_server, path, change, field):
    assert strict_server.post(path, BODIES[path]).status_code == 200
    rejected = strict_server.post(path, {**BODIES[path], **change})
    assert rejected.status_code == 400
    assert rejected.json()["error"]["message"] == f"{field} is not a supported field; remove it."
    assert "unknown_parameter" in rejected.text
    assert HEADER not in rejected.headers


def test_openapi_says_whether_unknown_fields_are_accepted(server, strict_server):
    for running, is_accepted in ((server, True), (strict_server, False)):
        schemas = running.get("/openapi.json").json()["components"]["schemas"]
        for name in ("ChatCompletionRequest", "ChatMessage", "MessagesTool", "TextFormat"):
            assert schemas[name]["additionalProperties"] is is_accepted


@pytest.mark.parametrize("path", PATHS[:3])
def test_seed_minus_one_is_no_seed(server, path):
    def sample(seed):
        body = small_body(path, max_tokens=12, temperature=5, ignore_eos=True, seed=seed)
        response = server.post(path, body).json()
        return json.dumps(response.get("choices") or response["output"][0]["content"])

    assert len({sample(-1) for _ in range(4)}) > 1
    assert sample(-2) == sample(-2)
