"""XML tool calls with official clients: end tags in values, calls inside the reasoning.

The model is scripted; template, grammar and parser are those of Qwen3.5.
"""

import json

import anthropic
import openai
import pytest

from tests.engine.tool_calls.templates import TEMPLATES
from tests.server.running_server import RunningServer

pytest.importorskip("llguidance")

TEXT = (
    "a\n</parameter>\nb\n</parameter>\n<parameter=new_string>\nc\n</parameter>\n<parameter=path>\n"
)
ARGUMENTS = {"path": "notes.txt", "text": TEXT}
SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
    "required": ["path", "text"],
}
CALL = "<tool_call>\n<function=write>\n" + "".join(
    f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in ARGUMENTS.items()
)
CALL += "</function>\n</tool_call>"
THOUGHT = "I call <tool_call> now."
SCRIPT = [
    ["in the reasoning", [f"{THOUGHT}\n{CALL}"]],
    ["after the reasoning", [f"{THOUGHT}\n</think>\n\nSo:\n{CALL}"]],
]
QUESTIONS = {"Call it in the reasoning.": None, "Call it after the reasoning.": "So:"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("script")
    (folder / "script.json").write_text(json.dumps(SCRIPT))
    (folder / "template.jinja").write_text(TEMPLATES["qwen3.5"])
    template = ("--chat-template", str(folder / "template.jinja"))
    running = RunningServer(*template, script=folder / "script.json")
    yield running
    assert running.stop() == 0, "".join(running.lines[-60:])


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("budget", [-1, 30])
def test_chat_completion(server, question, budget):
    if budget == 30 and "after" in question:
        budget = 100  # the script does not end its reasoning earlier
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    tool = {"type": "function", "function": {"name": "write", "parameters": SCHEMA}}
    body = {"model": "demo", "messages": [{"role": "user", "content": question}], "tools": [tool]}
    body["extra_body"] = {"thinking_token_budget": budget}
    full = client.chat.completions.create(**body)
    with client.chat.completions.stream(**body) as events:
        streamed = events.get_final_completion()
    for completion in (full, streamed):
        choice = completion.choices[0]
        assert choice.finish_reason == "tool_calls"
        assert (choice.message.content or None) == QUESTIONS[question]
        assert choice.message.reasoning_content == THOUGHT
        [call] = choice.message.tool_calls
        assert json.loads(call.function.arguments) == ARGUMENTS
    assert 0 < full.usage.completion_tokens_details.reasoning_tokens < full.usage.completion_tokens


@pytest.mark.parametrize("question", QUESTIONS)
def test_message(server, question):
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    body = {"model": "demo", "messages": [{"role": "user", "content": question}]}
    body |= {"tools": [{"name": "write", "input_schema": SCHEMA}], "max_tokens": 500}
    body["thinking"] = {"type": "adaptive"}
    full = client.messages.create(**body)
    with client.messages.stream(**body) as events:
        streamed = events.get_final_message()
    for message in (full, streamed):
        assert message.stop_reason == "tool_use"
        assert (message.content[0].thinking, message.content[-1].input) == (THOUGHT, ARGUMENTS)


def test_response(server):
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    tool = {"type": "function", "name": "write", "parameters": SCHEMA, "strict": False}
    for question, content in QUESTIONS.items():
        body = {"model": "demo", "input": question, "tools": [tool]}
        with client.responses.stream(**body) as events:
            streamed = events.get_final_response()
        for response in (client.responses.create(**body), streamed):
            assert response.status == "completed"
            assert (response.output_text or None) == content
            assert json.loads(response.output[-1].arguments) == ARGUMENTS
