"""Chat Completions API, tested with OpenAI's client."""

import pytest

from tests.server.protocols import CHAT, PARIS
from tests.support import function_tool, object_schema
from tiny_llm.server.openai.chat_schema import ChatCompletionRequest

PLAIN = CHAT.body()
MESSAGES = PLAIN["messages"]
UNICODE = "Tokyo is 東京, 🎉 naïve"
PAINT = function_tool("paint", object_schema(colour={"enum": ["red", "blue"]}))
OTHER = function_tool("sing", {"type": "object"})


def test_stream_chunks(server, client):
    usage = {"include_usage": True}
    *chunks, last = client.chat.completions.create(**PLAIN, stream=True, stream_options=usage)
    assert {(chunk.id, chunk.created) for chunk in chunks} == {(last.id, last.created)}
    roles = [bool(chunk.choices[0].delta.role) for chunk in chunks]
    assert roles == [True] + [False] * (len(chunks) - 1)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == PARIS
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]
    assert (last.choices, last.usage.completion_tokens) == ([], 8)
    without_usage = list(client.chat.completions.create(**PLAIN, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in without_usage)
    response = server.post(CHAT.path, {**PLAIN, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-accel-buffering"] == "no"
    assert response.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("effort", ["none", "high"])
@pytest.mark.parametrize(
    "text", [None, "<b>Paris</b>", "<", "\nParis", "<think", "Paris.", UNICODE]
)
def test_logprobs(client, effort, text):
    """Text that might be a tag, and characters of several tokens, are held back with logprobs."""
    body = CHAT.body(effort=effort, logprobs=True)
    extra = {} if text is None else {"structured_outputs": {"choice": [text]}}
    for as_token_ids in (False, True):
        extra["return_tokens_as_token_ids"] = as_token_ids
        (choice,) = client.chat.completions.create(**body, top_logprobs=2, extra_body=extra).choices
        chunks = client.chat.completions.create(**body, stream=True, extra_body=extra)
        streamed = [e for c in chunks for e in getattr(c.choices[0].logprobs, "content", [])]
        content = choice.message.content
        expected = PARIS if text is None else text
        assert content == (expected.lstrip() if effort == "high" else expected)
        for entries, num_alternatives in ((choice.logprobs.content, 2), (streamed, 0)):
            assert all(len(entry.top_logprobs) == num_alternatives for entry in entries)
            data = b"".join(bytes(entry.bytes) for entry in entries).decode()
            assert data.partition("<|")[0] == content  # with ids, EOS is included
            if not as_token_ids:
                assert "".join(entry.token for entry in entries) == content
                assert any(not entry.token for entry in entries) == (text == UNICODE)


def test_n_choices(client):
    body = {**PLAIN, "n": 3, "temperature": 8.0, "seed": -5, "max_tokens": 8}
    response = client.chat.completions.create(**body)
    assert [choice.index for choice in response.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in response.choices}) > 1
    streamed = ["", "", ""]
    for chunk in client.chat.completions.create(**body, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == [choice.message.content for choice in response.choices]


def test_allowed_tools(client):
    def prompt_tokens(tools, mode):
        allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "paint"}}]}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        body = {**PLAIN, "tools": tools, "tool_choice": choice, "max_tokens": 80}
        response = client.chat.completions.create(**body, parallel_tool_calls=False)
        calls = response.choices[0].message.tool_calls or []
        assert mode == "auto" or [call.function.name for call in calls] == ["paint"]
        return response.usage.prompt_tokens

    counts = {
        prompt_tokens(tools, mode)
        for mode in ("auto", "required")
        for tools in ([OTHER, PAINT], [PAINT])
    }
    assert len(counts) == 1, "the prompt contains a tool outside allowed_tools"


def test_optional_tool_calls_are_constrained():
    def constraint(**fields):
        body = {"messages": MESSAGES, "tools": [PAINT, OTHER], **fields}
        return ChatCompletionRequest(**body).constraint()

    calls = constraint()
    assert (calls.choice, len(calls.tools), calls.parallel) == ("auto", 2, True)
    assert not constraint(parallel_tool_calls=False).parallel
    assert constraint(tool_choice="none") is None
    assert constraint(ignore_eos=True) is None


def test_invalid_schema_is_rejected_only_for_required_calls(server):
    def body(name, choice):
        look = function_tool("look", {"type": "object", "properties": {name: {"type": "any"}}})
        return {**PLAIN, "tools": [OTHER, look], "tool_choice": choice}

    # Its control characters must be escaped in the log.
    response = server.post(CHAT.path, body("\x1b]0;evil\x07\nforged", "auto")).json()
    assert "Paris" in response["choices"][0]["message"]["content"]
    server.wait_for(r"tool calls are not constrained to their schemas: .*\\x1b\]0;evil\\x07\\nforg")
    assert server.reject(CHAT.path, body("a", "required")) == (
        "the schema of the tool 'look' is rejected at '/properties/a': 'any' is not a JSON Schema "
        "type."
    )
