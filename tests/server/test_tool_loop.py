"""Agent loop with official clients: two tool calls, then structured output.

The model is scripted. The optional tests in `frameworks/` run the loops of agent frameworks.
"""

import json

import pytest

from tests.server.protocols import PROTOCOLS
from tests.server.running_server import RunningServer
from tests.server.scripted_model import tool_call
from tests.support import object_schema

REPORT = {"city": "Paris", "weather": "sunny, 21 °C"}
RESULTS = {"get_weather": "sunny, 21 °C", "get_population": "2,100,000"}
SCRIPT = [
    "<think>\nThe weather first.\n</think>\n\n" + tool_call("get_weather", city="Paris"),
    tool_call("get_population", city="Paris"),
    json.dumps(REPORT, ensure_ascii=False),
]
# As with real agents, tool definitions are most of the prompt.
TOOLS = [
    {
        "name": name,
        "description": f"Gets the {name[4:]}. " * 20,
        "parameters": object_schema(city={"type": "string"}),
    }
    for name in RESULTS
]
SCHEMA = object_schema(**{key: {"type": "string"} for key in REPORT})
BODY = {"tools": TOOLS, "schema": SCHEMA | {"additionalProperties": False}, "effort": None}


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    script = tmp_path_factory.mktemp("script") / "script.json"
    script.write_text(json.dumps([["", SCRIPT]]))
    with RunningServer(script=script) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_two_tool_calls_and_a_structured_output(scripted, protocol, stream):
    question = "Report the weather and the population of Paris."
    history, calls, previous_tokens = [{"role": "user", "content": question}], [], 0
    for _ in range(3):
        answer = protocol.ask(scripted, history, **BODY, stream=stream)
        calls += [(call.name, call.arguments) for call in answer.calls]
        results = [protocol.result(call, RESULTS[call.name]) for call in answer.calls]
        history = [*history, *answer.turn, *results]
        assert answer.cached_tokens >= 0.9 * previous_tokens, (
            "all full pages of the previous turn must be cached"
        )
        previous_tokens = answer.prompt_tokens
    assert calls == [(name, {"city": "Paris"}) for name in RESULTS]
    assert json.loads(answer.text) == REPORT
