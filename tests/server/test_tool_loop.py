"""Agent loop with official clients: two tool calls, then structured output.

The model is scripted. The optional tests in `frameworks/` run the loops of agent frameworks.
"""

import json

import anthropic
import openai
import pytest

from tests.server.running_server import RunningServer
from tests.server.scripted_model import tool_call

REPORT = {"city": "Paris", "weather": "sunny, 21 °C"}
RESULTS = {"get_weather": "sunny, 21 °C", "get_population": "2,100,000"}
SCRIPT = [
    "<think>\nThe weather first.\n</think>\n\n" + tool_call("get_weather", city="Paris"),
    tool_call("get_population", city="Paris"),
    json.dumps(REPORT, ensure_ascii=False),
]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCHEMA = {"type": "object", "properties": {key: {"type": "string"} for key in REPORT}}
SCHEMA |= {"required": list(REPORT), "additionalProperties": False}
# As with real agents, tool definitions are most of the prompt.
TOOLS = [{"name": name, "description": f"Gets the {name[4:]}. " * 20} for name in RESULTS]
QUESTION = {"role": "user", "content": "Report the weather and the population of Paris."}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    script = tmp_path_factory.mktemp("script") / "script.json"
    script.write_text(json.dumps([["", SCRIPT]]))
    running = RunningServer(script=script)
    yield running
    assert running.stop() == 0


def chat(url, messages, stream):
    """Sends a chat completion; returns (messages to append, calls, text, usage).

    Usage is (prompt tokens, cached tokens).
    """
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    tools = [{"type": "function", "function": {**tool, "parameters": CITY}} for tool in TOOLS]
    output_format = {"type": "json_schema", "json_schema": {"name": "report", "schema": SCHEMA}}
    body = {"model": "demo", "messages": messages, "tools": tools, "response_format": output_format}
    if stream:
        with client.chat.completions.stream(
            **body, stream_options={"include_usage": True}
        ) as events:
            answer = events.get_final_completion()
    else:
        answer = client.chat.completions.create(**body)
    message = answer.choices[0].message
    calls = message.tool_calls or []
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": RESULTS[call.function.name]}
        for call in calls
    ]
    calls_made = [(call.function.name, json.loads(call.function.arguments)) for call in calls]
    usage = answer.usage.prompt_tokens, answer.usage.prompt_tokens_details.cached_tokens
    return [message.to_dict(), *results], calls_made, message.content, usage


def respond(url, items, stream):
    """Like `chat`, through the Responses API."""
    client = openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0)
    tools = [{"type": "function", **tool, "parameters": CITY} for tool in TOOLS]
    output_format = {"format": {"type": "json_schema", "name": "report", "schema": SCHEMA}}
    body = {"model": "demo", "input": items, "tools": tools, "text": output_format}
    if stream:
        with client.responses.stream(**body) as events:
            answer = events.get_final_response()
    else:
        answer = client.responses.create(**body)
    calls = [item for item in answer.output if item.type == "function_call"]
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": RESULTS[call.name]}
        for call in calls
    ]
    calls_made = [(call.name, json.loads(call.arguments)) for call in calls]
    usage = answer.usage.input_tokens, answer.usage.input_tokens_details.cached_tokens
    items = [item.to_dict(exclude_none=True) for item in answer.output]
    return items + results, calls_made, answer.output_text, usage


def message(url, messages, stream):
    """Like `chat`, through the Messages API."""
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    tools = [{**tool, "input_schema": CITY} for tool in TOOLS]
    output_format = {"format": {"type": "json_schema", "schema": SCHEMA}}
    body = {"model": "demo", "max_tokens": 500, "messages": messages, "tools": tools}
    if stream:
        with client.messages.stream(**body, output_config=output_format) as events:
            answer = events.get_final_message()
    else:
        answer = client.messages.create(**body, output_config=output_format)
    calls = [block for block in answer.content if block.type == "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": RESULTS[call.name]}
        for call in calls
    ]
    more = [{"role": "assistant", "content": [block.to_dict() for block in answer.content]}]
    if results:
        more.append({"role": "user", "content": results})
    text = "".join(block.text for block in answer.content if block.type == "text")
    usage = answer.usage
    counts = usage.input_tokens + usage.cache_read_input_tokens, usage.cache_read_input_tokens
    return more, [(call.name, call.input) for call in calls], text, counts


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("send", [chat, respond, message])
def test_two_tool_calls_and_a_structured_output(scripted, send, stream):
    history, calls_made, previous_tokens = [QUESTION], [], 0
    for turn in range(3):
        more, calls, text, (num_tokens, num_cached) = send(scripted.url, history, stream)
        history, calls_made = history + more, calls_made + calls
        if turn:
            assert num_cached >= 0.9 * previous_tokens, (
                "all full pages of the previous turn must be cached"
            )
        previous_tokens = num_tokens
    assert calls_made == [(name, {"city": "Paris"}) for name in RESULTS]
    assert json.loads(text) == REPORT
