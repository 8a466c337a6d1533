"""Tool calls in each format and protocol, with other models' chat templates.

The demo model is not trained on these formats; the grammar of a required call enforces them.
"""

import json
import re

import anthropic
import openai
import pytest

from tests.engine.tool_calls.templates import TEMPLATES
from tests.server.running_server import RunningServer
from tiny_llm.demo import TARGET_PATH

FAMILIES = ["qwen3.5", "llama3", "mistral-list", "mistral-args"]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["São\nPaulo", 'A "B" </parameter>']},
        "note": {"type": "string", "maxLength": 9},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "note", "days"],
}
FUNCTION = {"name": "forecast", "description": "Weather.", "parameters": SCHEMA}
QUESTION = {"role": "user", "content": "Weather?"}
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
    running = RunningServer("--model", str(folder), "--served-model-name", "demo")
    yield request.param, running
    assert running.stop() == 0, "".join(running.lines[-60:])


def check(family, call_id, name, arguments):
    assert name == "forecast"
    arguments_object = json.loads(arguments) if isinstance(arguments, str) else arguments
    assert arguments_object["city"] in SCHEMA["properties"]["city"]["enum"]
    assert set(arguments_object) == set(SCHEMA["properties"])
    is_mistral = family.startswith("mistral")
    assert bool(re.fullmatch("[a-zA-Z0-9]{9}", call_id)) == is_mistral


@pytest.mark.slow
def test_chat_completions(served):
    family, server = served
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    body = {"model": "demo", "messages": [QUESTION], "reasoning_effort": "none", "temperature": 0}
    body |= {"tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required"}
    body |= {"parallel_tool_calls": False}
    full = client.chat.completions.create(**body)
    [call] = full.choices[0].message.tool_calls
    check(family, call.id, call.function.name, call.function.arguments)
    assert (full.choices[0].message.content, full.choices[0].finish_reason) == (None, "tool_calls")
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**body, stream=True)]
    assert not any(chunk.delta.content for chunk in chunks)
    deltas = [chunk.delta.tool_calls[0] for chunk in chunks if chunk.delta.tool_calls]
    assert "".join(delta.function.arguments or "" for delta in deltas) == call.function.arguments
    assert len(deltas) > 3
    assert chunks[-1].finish_reason == "tool_calls"
    # The call id in a second turn may be from this or another server.
    for call_id in (call.id, "call_0123456789abcdef01234567"):
        tool_call = {**call.model_dump(), "id": call_id}
        turns = [{"role": "assistant", "tool_calls": [tool_call]}]
        turns += [{"role": "tool", "tool_call_id": call_id, "content": "sunny"}]
        answer = client.chat.completions.create(
            **{**body, "messages": [QUESTION, *turns], "tool_choice": "none"}, max_tokens=5
        )
        assert answer.choices[0].finish_reason in ("length", "stop")


@pytest.mark.slow
def test_responses(served):
    family, server = served
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    body = {"model": "demo", "input": [QUESTION], "temperature": 0, "parallel_tool_calls": False}
    body |= {"tools": [{"type": "function", **FUNCTION}], "tool_choice": "required"}
    body |= {"reasoning": {"effort": "none"}}
    [call] = client.responses.create(**body).output
    check(family, call.call_id, call.name, call.arguments)
    events = list(client.responses.create(**body, stream=True))
    kind = "response.function_call_arguments.delta"
    assert "".join(event.delta for event in events if event.type == kind) == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    turns = [QUESTION, call.model_dump(exclude_none=True), result]
    more = {**body, "input": turns, "tool_choice": "none"}
    assert client.responses.create(**more, max_output_tokens=5).output


def test_messages(served):
    family, server = served
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    tool = {"name": "forecast", "input_schema": SCHEMA}
    body = {"model": "demo", "messages": [QUESTION], "tools": [tool], "max_tokens": 300}
    body |= {"tool_choice": {"type": "tool", "name": "forecast"}}
    full = client.messages.create(**body)
    [block] = full.content
    assert full.stop_reason == "tool_use"
    check(family, block.id, block.name, block.input)
    with client.messages.stream(**body) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        [streamed] = stream.get_final_message().content
    assert len(pieces) > 2
    assert json.loads("".join(pieces)) == streamed.input
    check(family, streamed.id, streamed.name, streamed.input)
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
    turns = [
        {
            "role": "assistant",
            "content": [block.model_dump(include={"type", "id", "name", "input"})],
        }
    ]
    turns += [{"role": "user", "content": [result]}]
    more = {**body, "messages": [QUESTION, *turns], "tool_choice": {"type": "none"}}
    assert client.messages.create(**{**more, "max_tokens": 5}).content


@pytest.mark.slow
def test_tool_calls_with_a_response_format(served):
    """Each output is a tool call or matches the response format."""
    family, server = served
    response_format = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}}
    response_format |= {"required": ["age"], "additionalProperties": False}
    body = {"messages": [QUESTION], "reasoning_effort": "none", "max_tokens": 200}
    body |= {"tools": [{"type": "function", "function": FUNCTION}]}
    body["response_format"] = {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": response_format},
    }
    kinds = set()
    for seed in range(6):
        answer = server.post("/v1/chat/completions", {**body, "seed": seed, "temperature": 1.5})
        [choice] = answer.json()["choices"]
        message = choice["message"]
        if choice["finish_reason"] == "length":
            continue
        kinds.add(choice["finish_reason"])
        if choice["finish_reason"] == "tool_calls":
            assert message["content"] is None
            [*_, call] = message["tool_calls"]
            check(family, call["id"], call["function"]["name"], call["function"]["arguments"])
        else:
            assert set(json.loads(message["content"])) == {"age"}
    assert kinds
    forced = {**body, "tool_choice": "required", "parallel_tool_calls": False}
    [choice] = server.post("/v1/chat/completions", forced).json()["choices"]
    assert choice["finish_reason"] in ("tool_calls", "length")
    if choice["finish_reason"] == "tool_calls":
        assert not MARKERS.search(message["content"] or "")
