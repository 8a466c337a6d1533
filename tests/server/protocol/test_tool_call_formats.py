"""Tool calls in each format and protocol, with other models' chat templates.

The demo model is not trained on these formats; the grammar of a required call enforces them.
"""

import json
import re

import pytest

from tests.engine.tool_calls.templates import TEMPLATES
from tests.server.protocols import PROTOCOLS
from tests.server.running_server import RunningServer
from tests.support import object_schema
from tiny_llm.demo import TARGET_PATH

FAMILIES = ["qwen3.5", "llama3", "mistral-list", "mistral-args"]
CITIES = ["São\nPaulo", 'A "B" </parameter>']
PROPERTIES = {
    "city": {"type": "string", "enum": CITIES},
    "note": {"type": "string", "maxLength": 9},
    "days": {"type": "integer", "minimum": 1, "maximum": 9},
}
TOOL = {"name": "forecast", "description": "Weather.", "parameters": object_schema(**PROPERTIES)}
NO_THINKING = (  # the demo model thinks by default
    "{% if add_generation_prompt and enable_thinking is false %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
)


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


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_required_call_and_its_result(served, protocol):
    family, server = served
    body = {"tools": [TOOL], "temperature": 0, "parallel": False}
    full = protocol.ask(server, "Weather?", **body, choice="forecast")
    streamed = protocol.ask(server, "Weather?", **body, choice="forecast", stream=True)
    for answer in (full, streamed):
        [call] = answer.calls
        assert call.name == "forecast"
        assert call.arguments["city"] in CITIES
        assert set(call.arguments) == set(PROPERTIES)
        assert bool(re.fullmatch("[a-zA-Z0-9]{9}", call.id)) == family.startswith("mistral")
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
