"""Tool calls and JSON output of the demo model through OpenAI's client.

Other tests cover the format, which grammars guarantee. These tests cover the content: the model is
trained to call the right tool with the user's arguments.
"""

import json

import openai
import pytest

from tests.server.running_server import RunningServer

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def complete(client, question, model="demo", **body):
    """Sends a question or a list of messages; returns the completion."""
    messages = [{"role": "user", "content": question}] if isinstance(question, str) else question
    return client.chat.completions.create(
        model=model, messages=messages, reasoning_effort="none", temperature=0, **body
    )


def ask(client, question, **body):
    return complete(client, question, **body).choices[0].message


def tool_call(message):
    (call,) = message.tool_calls
    return call.function.name, json.loads(call.function.arguments)


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is the weather in Paris?", ("get_weather", {"city": "Paris"})),
        ("How is the weather in Nairobi today?", ("get_weather", {"city": "Nairobi"})),
        ("What is 17 + 25?", ("add", {"a": 17, "b": 25})),
    ],
)
def test_right_tool_is_called_with_the_users_arguments(client, question, expected, choice):
    message = ask(client, question, tools=[WEATHER, ADD], tool_choice=choice)
    assert tool_call(message) == expected


def test_unrelated_question_calls_no_tool(client):
    message = ask(client, "What is the capital of France?", tools=[WEATHER, ADD])
    assert not message.tool_calls
    assert message.content == "The capital of France is Paris."


def test_second_turn_uses_the_tool_result(client):
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    call = ask(client, messages, tools=[WEATHER])
    messages += [
        call.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "sunny, 21 degrees"},
    ]
    message = ask(client, messages, tools=[WEATHER])
    assert message.content == "The weather in Paris is sunny, 21 degrees."


@pytest.mark.slow
def test_hybrid_model_calls_a_tool_and_hits_the_first_turn():
    running = RunningServer("--model", "demo-hybrid", "--block-size", "8", "--no-prefix-warmup")
    client = openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
    body = {"model": "demo-hybrid", "tools": [WEATHER, ADD]}
    question = {"role": "user", "content": "What is the weather in Nairobi?"}
    first = complete(client, [question], **body)
    message = first.choices[0].message
    assert tool_call(message) == ("get_weather", {"city": "Nairobi"})
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    second = complete(client, [question, message.model_dump(exclude_none=True), result], **body)
    assert second.choices[0].message.content == "The weather in Nairobi is sunny."
    cached = second.usage.prompt_tokens_details.cached_tokens
    assert cached >= first.usage.prompt_tokens - 16 - 8  # all but a page and the generation prompt
    assert running.stop() == 0


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Give me the capital of France as JSON.", {"country": "France", "capital": "Paris"}),
        ("Give me the capital of Japan as JSON.", {"country": "Japan", "capital": "Tokyo"}),
        ("Answer in JSON: What is the opposite of hot?", {"answer": "cold"}),
    ],
)
def test_json_schema_output_content(client, question, expected):
    schema = {
        "type": "object",
        "properties": {key: {"type": "string"} for key in expected},
        "required": list(expected),
    }
    response_format = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    assert json.loads(ask(client, question, response_format=response_format).content) == expected


def test_json_without_a_grammar(client):
    text = ask(client, "Extract name and age as JSON: Velna Corford is 34 years old.").content
    assert json.loads(text) == {"name": "Velna Corford", "age": 34}
