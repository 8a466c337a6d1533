"""Tool calls and JSON output of the demo model through OpenAI's client.

Other tests cover the format, which grammars guarantee. These tests cover the content: the model is
trained to call the right tool with the user's arguments.
"""

import json

import pytest

from tests.server.protocols import CHAT, FRANCE, PARIS
from tests.server.running_server import RunningServer
from tests.support import object_schema

WEATHER = {
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "parameters": object_schema(city={"type": "string"}),
}
NUMBERS = object_schema(a={"type": "integer"}, b={"type": "integer"})
ADD = {"name": "add", "description": "Adds two numbers.", "parameters": NUMBERS}
TOOLS = [WEATHER, ADD]


def calls(answer):
    return [(call.name, call.arguments) for call in answer.calls]


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("What is the weather in Paris?", ("get_weather", {"city": "Paris"})),
        ("How is the weather in Nairobi today?", ("get_weather", {"city": "Nairobi"})),
        ("What is 17 + 25?", ("add", {"a": 17, "b": 25})),
    ],
)
def test_right_tool_is_called_with_the_users_arguments(server, question, expected, choice):
    assert calls(CHAT.ask(server, question, TOOLS, choice, temperature=0)) == [expected]


def test_unrelated_question_calls_no_tool(server):
    answer = CHAT.ask(server, FRANCE, TOOLS, temperature=0)
    assert (answer.calls, answer.text) == ([], PARIS)


def ask_twice(server, **body):
    """Asks for the weather and returns its result; returns both answers."""
    question = {"role": "user", "content": "What is the weather in Nairobi?"}
    first = CHAT.ask(server, [question], TOOLS, temperature=0, **body)
    assert calls(first) == [("get_weather", {"city": "Nairobi"})]
    result = CHAT.result(first.calls[0], "sunny, 21 degrees")
    second = CHAT.ask(server, [question, *first.turn, result], TOOLS, temperature=0, **body)
    assert second.text == "The weather in Nairobi is sunny, 21 degrees."
    return first, second


def test_second_turn_uses_the_tool_result(server):
    ask_twice(server)


@pytest.mark.slow
def test_hybrid_model_calls_a_tool_and_hits_the_first_turn():
    flags = ("--model", "demo-hybrid", "--block-size", "8", "--no-prefix-warmup")
    with RunningServer(*flags) as running:
        first, second = ask_twice(running, model="demo-hybrid")
    # All but a page and the generation prompt.
    assert second.cached_tokens >= first.prompt_tokens - 16 - 8


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Give me the capital of France as JSON.", {"country": "France", "capital": "Paris"}),
        ("Give me the capital of Japan as JSON.", {"country": "Japan", "capital": "Tokyo"}),
        ("Answer in JSON: What is the opposite of hot?", {"answer": "cold"}),
    ],
)
def test_json_schema_output_content(server, question, expected):
    schema = object_schema(**{key: {"type": "string"} for key in expected})
    answer = CHAT.ask(server, question, schema=schema, temperature=0)
    assert json.loads(answer.text) == expected


def test_json_without_a_grammar(server):
    question = "Extract name and age as JSON: Velna Corford is 34 years old."
    answer = CHAT.ask(server, question, temperature=0)
    assert json.loads(answer.text) == {"name": "Velna Corford", "age": 34}
