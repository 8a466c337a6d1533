"""Tools and a response format: the output is a call or matches the format."""

import json

import anthropic
import pytest
from pydantic import BaseModel

from tests.server.test_demo_model import WEATHER

FRANCE = {"country": "France", "capital": "Paris"}
CITY = {"type": "object", "properties": {key: {"type": "string"} for key in FRANCE}}
CITY |= {"required": list(FRANCE), "additionalProperties": False}
FUNCTION = WEATHER["function"]
CALLS, ANSWERS = "What is the weather in Paris?", "Give me the capital of France as JSON."


def chat(question, choice=None):
    body = {"messages": [{"role": "user", "content": question}], "reasoning_effort": "none"}
    body |= {"tools": [WEATHER], "tool_choice": choice or "auto", "temperature": 0}
    response_format = {
        "type": "json_schema",
        "json_schema": {"name": "city", "schema": CITY, "strict": True},
    }
    return "/v1/chat/completions", {**body, "response_format": response_format}


def respond(question, choice=None):
    body = {"input": question, "reasoning": {"effort": "none"}, "temperature": 0}
    body |= {"tools": [{"type": "function", **FUNCTION}], "tool_choice": choice or "auto"}
    response_format = {"type": "json_schema", "name": "city", "schema": CITY}
    return "/v1/responses", {**body, "text": {"format": response_format}}


def message(question, choice=None):
    tool = {"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}
    body = {"messages": [{"role": "user", "content": question}], "max_tokens": 200}
    body |= {"tools": [tool], "tool_choice": {"type": "any" if choice else "auto"}}
    response_format = {"type": "json_schema", "schema": CITY}
    return "/v1/messages", {**body, "temperature": 0, "output_config": {"format": response_format}}


def parts(response):
    """Returns (texts, arguments of calls) of a response in any protocol."""
    body = response.json()
    assert response.status_code == 200, body
    if "choices" in body:
        message = body["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        texts = [message["content"]] if message["content"] else []
        return texts, [json.loads(call["function"]["arguments"]) for call in calls]
    if "output" in body:
        texts = [item["content"][0]["text"] for item in body["output"] if item["type"] == "message"]
        calls = [item for item in body["output"] if item["type"] == "function_call"]
        return texts, [json.loads(call["arguments"]) for call in calls]
    texts = [block["text"] for block in body["content"] if block["type"] == "text"]
    return texts, [block["input"] for block in body["content"] if block["type"] == "tool_use"]


@pytest.mark.parametrize("make", [chat, respond, message])
def test_call_or_structured_output(server, make):
    assert parts(server.post(*make(CALLS))) == ([], [{"city": "Paris"}])
    [answer], calls = parts(server.post(*make(ANSWERS)))
    assert (json.loads(answer), calls) == (FRANCE, [])


@pytest.mark.parametrize("make", [chat, respond, message])
def test_required_call(server, make):
    texts, calls = parts(server.post(*make(ANSWERS, "required")))
    assert (texts, set(calls[0])) == ([], {"city"})


class Capital(BaseModel):
    """Pydantic model of the schema `CITY`."""

    country: str
    capital: str


def test_parsers_of_the_clients(server, client):
    """Clients parse all text as `Capital`, so text before a call is an error."""
    strict = {**FUNCTION, "strict": True}
    tools = [{"type": "function", "function": strict}]
    body = {**chat(CALLS)[1], "tools": tools, "response_format": Capital}
    called = client.chat.completions.parse(model="demo", **body).choices[0].message
    assert called.tool_calls[0].function.parsed_arguments == {"city": "Paris"}
    assert called.content is None
    response = client.responses.parse(
        model="demo", input=CALLS, tools=[{"type": "function", **strict}], text_format=Capital
    )
    assert [item.type for item in response.output] == ["reasoning", "function_call"]
    claude = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    body = message(CALLS)[1]
    for name in ("output_config", "temperature"):
        del body[name]
    parsed = claude.messages.parse(model="demo", **body, output_format=Capital)
    assert [block.type for block in parsed.content] == ["tool_use"]


def test_streamed_call_or_structured_output(client):
    for question in (CALLS, ANSWERS):
        _, body = chat(question)
        full = client.chat.completions.create(model="demo", **body).choices[0]
        chunks = list(client.chat.completions.create(model="demo", **body, stream=True))
        deltas = [chunk.choices[0].delta for chunk in chunks]
        text = "".join(delta.content or "" for delta in deltas)
        calls = [call for delta in deltas for call in delta.tool_calls or ()]
        assert text == (full.message.content or "")
        arguments = "".join(call.function.arguments or "" for call in calls)
        assert arguments == "".join(
            call.function.arguments for call in full.message.tool_calls or ()
        )
        assert chunks[-1].choices[0].finish_reason == full.finish_reason


def test_invalid_tools_with_a_response_format_are_rejected(server):
    """Dropping the grammar of invalid tools would also drop the response format."""
    path, body = chat(CALLS)
    broken = {"name": "f", "parameters": {"type": "strung"}}
    response = server.post(path, {**body, "tools": [{"type": "function", "function": broken}]})
    assert response.status_code == 400
    assert "the schema of the tool 'f' is rejected" in response.json()["error"]["message"]


def test_stop_string_inside_a_call(client):
    """The finish reason of a truncated call is never "tool_calls"."""
    _, body = chat(CALLS, "required")
    del body["response_format"]
    body |= {"model": "demo", "stop": ["Par"]}
    [choice] = client.chat.completions.create(**body).choices
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    assert choice.message.content.endswith('"city": "')
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**body, stream=True)]
    assert chunks[-1].finish_reason == "stop"
    calls = [call for chunk in chunks for call in chunk.delta.tool_calls or ()]
    assert "".join(call.function.arguments or "" for call in calls) == '{"city": "'


def test_grammar_that_fails_during_generation(server):
    body = {"prompt": "x", "max_tokens": 60, "temperature": 0}
    regex = "(((a{1,1000}){1,1000}){1,1000}){1,1000}"
    response = server.post("/v1/completions", {**body, "structured_outputs": {"regex": regex}})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("The grammar failed: ")
    choice_body = {**body, "structured_outputs": {"choice": ["a <think> b"]}}
    assert server.post("/v1/completions", choice_body).json()["choices"][0]["text"] == "a <think> b"
