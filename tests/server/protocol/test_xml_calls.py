"""XML tool calls with official clients: end tags in values, calls inside the reasoning.

The model is scripted; template, grammar and parser are those of Qwen3.5.
"""

import json

import pytest

from tests.engine.tool_calls.templates import TEMPLATES
from tests.server.protocols import CHAT, PROTOCOLS
from tests.server.running_server import RunningServer
from tests.support import object_schema

pytest.importorskip("llguidance")

TEXT = (
    "a\n</parameter>\nb\n</parameter>\n<parameter=new_string>\nc\n</parameter>\n<parameter=path>\n"
)
STRING = {"type": "string"}
ARGUMENTS = {"path": "notes.txt", "text": TEXT}
TOOL = {"name": "write", "parameters": object_schema(path=STRING, text=STRING)}
CALL = "<tool_call>\n<function=write>\n" + "".join(
    f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in ARGUMENTS.items()
)
CALL += "</function>\n</tool_call>"
THOUGHT = "I call <tool_call> now."
SCRIPT = [
    ["in the reasoning", [f"{THOUGHT}\n{CALL}"]],
    ["after the reasoning", [f"{THOUGHT}\n</think>\n\nSo:\n{CALL}"]],
]
QUESTIONS = {"Call it in the reasoning.": "", "Call it after the reasoning.": "So:"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("script")
    (folder / "script.json").write_text(json.dumps(SCRIPT))
    (folder / "template.jinja").write_text(TEMPLATES["qwen3.5"])
    template = ("--chat-template", str(folder / "template.jinja"))
    with RunningServer(*template, script=folder / "script.json") as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize(
    ("protocol", "budget"), [*((protocol, None) for protocol in PROTOCOLS), (CHAT, 30)], ids=str
)
def test_call(server, question, protocol, budget, stream):
    if budget == 30 and "after" in question:
        budget = 100  # the script does not end its reasoning earlier
    fields = {} if budget is None else {"thinking_token_budget": budget}
    answer = protocol.ask(server, question, [TOOL], effort=None, stream=stream, **fields)
    assert (answer.text, answer.reasoning) == (QUESTIONS[question], THOUGHT)
    assert answer.finish == "tool_calls"
    assert [call.arguments for call in answer.calls] == [ARGUMENTS]
    assert 0 < answer.reasoning_tokens < answer.output_tokens
