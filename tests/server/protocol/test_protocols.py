"""What the chat protocols have in common, with and without streaming."""

import json
import re

import pytest

from tests.server.protocols import (
    CHAT,
    FRANCE,
    MESSAGES,
    PARIS,
    PATHS,
    PROTOCOLS,
    RESPONSES,
    small_body,
)
from tests.support import object_schema

COLOUR = object_schema(colour={"enum": ["red", "blue"]}) | {"additionalProperties": False}
PAINT = {"name": "paint", "parameters": COLOUR}

each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
each_way = pytest.mark.parametrize("stream", [False, True], ids=["full", "stream"])


@each_protocol
@each_way
def test_answer(server, protocol, stream):
    answer = protocol.ask(server, stream=stream)
    assert (answer.text, answer.reasoning, answer.calls) == (PARIS, "", [])
    assert (answer.finish, answer.output_tokens, answer.reasoning_tokens) == ("stop", 8, 0)
    assert answer.prompt_tokens == protocol.count(server) > 5
    if protocol is not MESSAGES:
        usage = answer.raw.usage
        assert usage.total_tokens == answer.prompt_tokens + answer.output_tokens


@each_protocol
def test_reasoning_is_separate_from_the_content(server, protocol):
    full = protocol.ask(server, effort="high", max_tokens=1500)
    assert "Paris" in full.reasoning
    assert "<think>" not in full.reasoning + full.text
    assert full.text == PARIS
    assert 0 < full.reasoning_tokens < full.output_tokens
    streamed = protocol.ask(server, effort="high", max_tokens=1500, stream=True)
    assert (streamed.reasoning, streamed.text) == (full.reasoning, full.text)


@each_protocol
@each_way
def test_max_tokens(server, protocol, stream):
    truncated = protocol.ask(server, max_tokens=2, stream=stream)
    assert (truncated.finish, truncated.output_tokens) == ("length", 2)
    if protocol is RESPONSES:
        assert truncated.raw.incomplete_details.reason == "max_output_tokens"
    if stream or protocol is not MESSAGES:  # Anthropic's client streams long messages only
        assert protocol.ask(server, max_tokens=32_000, stream=stream).finish == "stop"


@each_protocol
@each_way
def test_stop_strings(server, protocol, stream):
    name = "stop_sequences" if protocol is MESSAGES else "stop"
    stopped = protocol.ask(server, stream=stream, **{name: [" France"]})
    assert (stopped.text, stopped.finish) == ("The capital of", "stop")
    empty = protocol.ask(server, stream=stream, **{name: ["The"]})
    assert (empty.text, empty.finish) == ("", "stop")
    if protocol is MESSAGES:
        assert stopped.raw.stop_reason == "stop_sequence"
        assert stopped.raw.stop_sequence == " France"
        assert [block.type for block in empty.raw.content] == ["text"]
    elif protocol is RESPONSES:
        assert [item.type for item in empty.raw.output] == ["message"]


@each_protocol
def test_last_assistant_message_is_continued(server, protocol):
    messages = [{"role": "user", "content": FRANCE}]
    messages += [{"role": "assistant", "content": "The capital of"}]
    fields = {"continue_final_message": True, "add_generation_prompt": False}
    if protocol is CHAT:
        for effort in ("none", "high"):
            answer = protocol.ask(server, messages, effort=effort, **fields)
            assert answer.text == " France is Paris."
    elif protocol is MESSAGES:
        assert protocol.ask(server, messages).text == " France is Paris."


@each_protocol
@pytest.mark.parametrize("effort", ["none", "high"])
def test_json_schema(server, protocol, effort):
    answer = protocol.ask(server, schema=COLOUR, effort=effort, max_tokens=1500)
    assert json.loads(answer.text)["colour"] in ("red", "blue")


REFERENCE = {"type": "function", "name": "paint"}
ALLOWED_TOOLS = {  # in each protocol's own form
    CHAT: {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [{"type": "function", "function": {"name": "paint"}}],
        },
    },
    RESPONSES: {"type": "allowed_tools", "mode": "required", "tools": [REFERENCE]},
    MESSAGES: "required",
}


@each_protocol
@each_way
@pytest.mark.parametrize("choice", ["required", "paint", ALLOWED_TOOLS], ids=["any", "one", "some"])
def test_required_tool_call(server, protocol, choice, stream):
    if choice is ALLOWED_TOOLS:
        choice = ALLOWED_TOOLS[protocol]
    answer = protocol.ask(server, FRANCE, [PAINT], choice, parallel=False, stream=stream)
    [call] = answer.calls
    assert (call.name, answer.finish) == ("paint", "tool_calls")
    assert call.arguments["colour"] in ("red", "blue")


@each_protocol
def test_tools_and_results_are_in_the_prompt(server, protocol):
    first = protocol.ask(server, tools=[PAINT], choice="required")
    history = [{"role": "user", "content": FRANCE}, *first.turn]
    history += [protocol.result(call, "painted") for call in first.calls]
    history += [{"role": "user", "content": "And now?"}]
    without_tools = protocol.count(server, history)
    counted = protocol.count(server, history, [PAINT])
    assert counted > without_tools + 50
    assert protocol.ask(server, history, [PAINT], max_tokens=9).prompt_tokens == counted


@pytest.mark.parametrize("num_words", [3_000, 30_000, 600_000])
@pytest.mark.parametrize("path", PATHS)
def test_overlong_prompt(server, path, num_words):
    response = server.post(path, small_body(path, "a " * num_words))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    # Codex recognizes the error by its code, Claude Code by its message.
    fields = error.get("details", error)  # Anthropic's error object has `details`
    code = error["details"]["error_code"] if "details" in error else error["code"]
    assert code == "context_length_exceeded"
    assert fields["n_ctx"] == 2048
    assert 0.7 * num_words < fields["n_prompt_tokens"] < 2.5 * num_words
    counts = re.match(r"The prompt is too long: (\d+) tokens > (\d+) maximum", error["message"])
    assert [int(count) for count in counts.groups()] == [fields["n_prompt_tokens"], 2047]
