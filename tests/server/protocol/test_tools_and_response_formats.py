"""Tools and a response format: the output is a call or matches the format."""

import json

import pytest
from pydantic import BaseModel

from tests.server.protocols import CHAT, MESSAGES, PROTOCOLS, RESPONSES, send
from tests.server.test_demo_model import WEATHER
from tests.support import object_schema

FRANCE = {"country": "France", "capital": "Paris"}
SCHEMA = object_schema(**{key: {"type": "string"} for key in FRANCE})
BODY = {"tools": [WEATHER], "schema": SCHEMA | {"additionalProperties": False}, "temperature": 0}
CALLS, ANSWERS = "What is the weather in Paris?", "Give me the capital of France as JSON."


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_call_or_structured_output(server, protocol, stream):
    answer = protocol.ask(server, CALLS, **BODY, stream=stream)
    assert (answer.text, answer.finish) == ("", "tool_calls")
    assert [call.arguments for call in answer.calls] == [{"city": "Paris"}]
    answer = protocol.ask(server, ANSWERS, **BODY, stream=stream)
    assert (json.loads(answer.text), answer.calls, answer.finish) == (FRANCE, [], "stop")
    answer = protocol.ask(server, ANSWERS, **BODY, choice="required", stream=stream)
    assert (answer.text, set(answer.calls[0].arguments)) == ("", {"city"})


class Capital(BaseModel):
    """Response format."""

    country: str
    capital: str


def test_parsers_of_the_clients(server, client, claude):
    """Clients parse all text as `Capital`, so text before a call is an error."""
    strict = {**WEATHER, "strict": True}
    body = CHAT.body(CALLS, [strict], temperature=0)
    called = client.chat.completions.parse(**body, response_format=Capital).choices[0].message
    assert called.tool_calls[0].function.parsed_arguments == {"city": "Paris"}
    assert called.content is None
    tools = [{"type": "function", **strict}]
    response = client.responses.parse(model="demo", input=CALLS, tools=tools, text_format=Capital)
    assert [item.type for item in response.output] == ["reasoning", "function_call"]
    body = MESSAGES.body(CALLS, [WEATHER], max_tokens=200)
    parsed = claude.messages.parse(**body, output_format=Capital)
    assert [block.type for block in parsed.content] == ["tool_use"]


def test_invalid_tools_with_a_response_format_are_rejected(server):
    """Dropping the grammar of invalid tools would also drop the response format."""
    broken = {"name": "f", "parameters": {"type": "strung"}}
    error = server.reject(CHAT.path, CHAT.body(CALLS, **{**BODY, "tools": [broken]}))
    assert "the schema of the tool 'f' is rejected" in error


def test_stop_string_inside_a_call(client):
    """The finish reason of a truncated call is never "tool_calls"."""
    body = CHAT.body(CALLS, [WEATHER], "required", temperature=0, stop=["Par"])
    [choice] = client.chat.completions.create(**body).choices
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    assert choice.message.content.endswith('"city": "')
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**body, stream=True)]
    assert chunks[-1].finish_reason == "stop"
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert "".join(call.function.arguments or "" for call in calls) == '{"city": "'


def test_grammar_that_fails_during_generation(server):
    body = {"prompt": "x", "max_tokens": 60, "temperature": 0}
    regex = {"regex": "(((a{1,1000}){1,1000}){1,1000}){1,1000}"}
    error = server.reject("/v1/completions", {**body, "structured_outputs": regex})
    assert error.startswith("The grammar failed: ")
    body["structured_outputs"] = {"choice": ["a <think> b"]}
    assert server.post("/v1/completions", body).json()["choices"][0]["text"] == "a <think> b"


CITIES = {"type": "array", "items": {"enum": ["Paris", "Rome"]}, "minItems": 3, "maxItems": 3}
VISIT = {
    "name": "visit",
    "parameters": object_schema(cities=CITIES) | {"additionalProperties": False},
}
MAX_TOKENS = 42  # truncates the completion inside the arguments


def chat_argument_deltas(client, **more):
    body = CHAT.body(tools=[VISIT], choice="required", parallel=False, **more)
    *deltas, last = [c.choices[0] for c in client.chat.completions.create(**body, stream=True)]
    assert not any(delta.delta.content for delta in deltas)
    first, *calls = [delta.delta.tool_calls[0] for delta in deltas if delta.delta.tool_calls]
    assert (first.index, first.type, first.function.name) == (0, "function", "visit")
    assert first.id
    assert first.function.arguments == ""
    assert all(call.index == 0 and call.id is None for call in calls)
    return [call.function.arguments for call in calls], last.finish_reason


def test_chat_argument_deltas_are_never_retracted(client):
    full, reason = chat_argument_deltas(client)
    assert (len(full) > 1, reason) == (True, "tool_calls")
    assert len(json.loads("".join(full))["cities"]) == 3
    truncated, reason = chat_argument_deltas(client, max_tokens=MAX_TOKENS)
    assert reason == "length"
    assert "".join(full).startswith("".join(truncated))
    assert "".join(truncated) not in ("", "".join(full))


@pytest.mark.slow
def test_events_of_a_streamed_response(client):
    for limit, stop, status, item_status in (
        (200, None, "completed", "completed"),
        (MAX_TOKENS, None, "incomplete", "incomplete"),
        (200, "Par", "completed", "incomplete"),
    ):
        strict = {**VISIT, "strict": True}
        fields = {"max_tokens": limit, "stop": stop, "stream": True}
        body = RESPONSES.body("France?", [strict], "required", parallel=False, **fields)
        events = list(send(client.responses.create, body))
        kinds = [event.type.removeprefix("response.") for event in events]
        name = "function_call_arguments"
        number = kinds.count(f"{name}.delta")
        assert number > 1
        assert kinds == [
            *("created", "in_progress", "output_item.added"),
            *[f"{name}.delta"] * number,
            *(f"{name}.done", "output_item.done", status),
        ]
        arguments = "".join(event.delta for event in events if event.type.endswith(".delta"))
        (item,) = events[-1].response.output
        assert arguments == events[-3].arguments == item.arguments
        assert item.status == item_status


def test_streamed_message(server):
    body = {"tools": [VISIT], "choice": "visit", "stream": True}
    answer = MESSAGES.ask(server, **body)
    assert len(answer.argument_deltas) > 1
    assert len(answer.calls[0].arguments["cities"]) == 3
    body = MESSAGES.body(**body, max_tokens=MAX_TOKENS)
    events = list(send(server.anthropic.messages.create, body))
    assert events[-2].delta.stop_reason == "max_tokens"
    [start] = [event for event in events if event.type == "content_block_start"]
    assert start.content_block.type == "tool_use"
