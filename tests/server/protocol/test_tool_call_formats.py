"""Tool calls in each format and protocol, with other models' chat templates.

The demo model is not trained on these formats; the grammar of a required call enforces them.
"""

import json
import re

import pytest

from tests.engine.tool_calls.templates import TEMPLATES
from tests.server.protocols import CHAT, PROTOCOLS
from tests.server.running_server import RunningServer
from tiny_llm.demo import TARGET_PATH

FAMILIES = ["qwen3.5", "llama3", "mistral-list", "mistral-args"]
CITIES = ["São\nPaulo", 'A "B" </parameter>']
PROPERTIES = {
    "city": {"type": "string", "enum": CITIES},
    "note": {"type": "string", "maxLength": 9},
    "days": {"type": "integer", "minimum": 1, "maximum": 9},
}
SCHEMA = {"type": "object", "properties": PROPERTIES, "required": list(PROPERTIES)}
TOOL = {"name": "forecast", "description": "Weather.", "parameters": SCHEMA}
NO_THINKING = (  # the demo model thinks by default
    "{% if add_generation_prompt and enable_thinking is false %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
)
MARKERS = re.compile(r"TOOL_CALLS|ARGS|<function|<tool_call|\"parameters\"")


@pytest.fixture(scope="module", params=FAMILIES)
def served(request, tmp_path_factory):
    """(family, server of the demo model with the family's chat template)."""
    folder = tmp_path_factory.mktemp("models") / "demo"
    folder.mkdir()
    for file in TARGET_PATH.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").unlink()
    thinking = "" if request.param == "qwen3.5" else NO_THINKING
    (folder / "chat_template.jinja").write_text(TEMPLATES[request.param] + thinking)
    with RunningServer("--model", str(folder), "--served-model-name", "demo") as running:
        yield request.param, running


def check(family, call):
    assert call.name == "forecast"
    assert call.arguments["city"] in CITIES
    assert set(call.arguments) == set(PROPERTIES)
    assert bool(re.fullmatch("[a-zA-Z0-9]{9}", call.id)) == family.startswith("mistral")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_required_call_and_its_result(served, protocol):
    family, server = served
    body = {"tools": [TOOL], "temperature": 0, "parallel": False}
    full = protocol.ask(server, "Weather?", **body, choice="forecast")
    streamed = protocol.ask(server, "Weather?", **body, choice="forecast", stream=True)
    for answer in (full, streamed):
        [call] = answer.calls
        check(family, call)
        assert (answer.text, answer.finish) == ("", "tool_calls")
    assert streamed.calls[0].arguments == full.calls[0].arguments
    assert len(streamed.argument_deltas) > 2
    assert json.loads("".join(streamed.argument_deltas)) == call.arguments
    # The call id in a second turn may be from this or another server.
    [call] = full.calls
    result = protocol.result(call, "sunny")
    for call_id in (call.id, "call_0123456789abcdef01234567"):
        turns = json.loads(json.dumps([*full.turn, result]).replace(call.id, call_id))
        history = [{"role": "user", "content": "Weather?"}, *turns]
        second = protocol.ask(server, history, **body, choice="none", max_tokens=5)
        assert second.finish in ("length", "stop")


@pytest.mark.slow
def test_tool_calls_with_a_response_format(served):
    """Each output is a tool call or matches the response format."""
    _, server = served
    schema = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}}
    schema |= {"required": ["age"], "additionalProperties": False}
    body = {"messages": "Weather?", "tools": [TOOL], "schema": schema, "max_tokens": 200}
    kinds = set()
    for seed in range(6):
        sampled = CHAT.body(**body, seed=seed, temperature=1.5)
        [choice] = server.post(CHAT.path, sampled).json()["choices"]
        message = choice["message"]
        if choice["finish_reason"] == "length":
            continue
        kinds.add(choice["finish_reason"])
        if choice["finish_reason"] == "tool_calls":
            assert message["content"] is None
        else:
            assert set(json.loads(message["content"])) == {"age"}
    assert kinds
    forced = CHAT.body(**body, choice="required", parallel=False)
    [choice] = server.post(CHAT.path, forced).json()["choices"]
    assert choice["finish_reason"] in ("tool_calls", "length")
    if choice["finish_reason"] == "tool_calls":
        assert not MARKERS.search(choice["message"]["content"] or "")
