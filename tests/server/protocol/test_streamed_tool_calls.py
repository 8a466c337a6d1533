"""Streamed tool calls: argument deltas are never retracted."""

import json

import anthropic
import pytest

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
CITIES = {"type": "array", "items": {"enum": ["Paris", "Rome"]}, "minItems": 3, "maxItems": 3}
SCHEMA = {"type": "object", "properties": {"cities": CITIES}, "required": ["cities"]}
SCHEMA |= {"additionalProperties": False}
MAX_TOKENS = 42  # truncates the completion inside the arguments


def chat_argument_deltas(client, **more):
    function = {"name": "visit", "parameters": SCHEMA}
    chunks = client.chat.completions.create(
        model="demo",
        messages=FRANCE,
        reasoning_effort="none",
        tools=[{"type": "function", "function": function}],
        tool_choice="required",
        parallel_tool_calls=False,
        stream=True,
        **more,
    )
    *deltas, last = [chunk.choices[0] for chunk in chunks]
    calls = [delta.delta.tool_calls[0] for delta in deltas if delta.delta.tool_calls]
    assert not any(delta.delta.content for delta in deltas)
    assert (calls[0].function.name, calls[0].function.arguments) == ("visit", "")
    assert all(call.index == 0 and call.id is None for call in calls[1:])
    return [call.function.arguments for call in calls[1:]], last.finish_reason


def test_chat_completion(client):
    arguments, reason = chat_argument_deltas(client)
    assert len(arguments) > 1
    assert len(json.loads("".join(arguments))["cities"]) == 3
    assert reason == "tool_calls"


def test_truncated_chat_completion(client):
    full, _ = chat_argument_deltas(client)
    arguments, reason = chat_argument_deltas(client, max_tokens=MAX_TOKENS)
    assert reason == "length"
    assert "".join(full).startswith("".join(arguments))
    assert "".join(arguments) not in ("", "".join(full))


@pytest.mark.slow
def test_streamed_response(client):
    tool = {"type": "function", "name": "visit", "parameters": SCHEMA, "strict": True}
    body = {"model": "demo", "input": "France?", "tools": [tool], "tool_choice": "required"}
    body |= {"reasoning": {"effort": "none"}, "parallel_tool_calls": False}
    for limit, stop, status, item_status in (
        (200, None, "completed", "completed"),
        (MAX_TOKENS, None, "incomplete", "incomplete"),
        (200, "Par", "completed", "incomplete"),
    ):
        body |= {"max_output_tokens": limit, "extra_body": {"stop": stop}}
        events = list(client.responses.create(**body, stream=True))
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
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    tool = {"name": "visit", "input_schema": SCHEMA}
    body = {"model": "demo", "messages": FRANCE, "tools": [tool]}
    body["tool_choice"] = {"type": "tool", "name": "visit"}
    with client.messages.stream(**body, max_tokens=200) as stream:
        events = [event for event in stream if event.type == "input_json"]
        (block,) = stream.get_final_message().content
    assert len(events) > 1
    assert len(block.input["cities"]) == 3
    with client.messages.stream(**body, max_tokens=MAX_TOKENS) as stream:
        truncated = stream.get_final_message()
    assert truncated.stop_reason == "max_tokens"
    assert truncated.content[0].type == "tool_use"
