"""The agent's chat models: scripted, in-process engine, HTTP server."""

import json
from unittest import mock

import pytest

from tests.cli.support import stub_server
from tiny_llm import LLM, UserError
from tiny_llm.agent import Agent, LocalModel, OpenAIModel, ScriptedModel, Tool, assistant
from tiny_llm.agent.tools import calculator

QUESTION = [{"role": "user", "content": "What is 4718 + 2593?"}]
DEFINITIONS = [tool.definition for tool in calculator()]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("demo")


def test_demo_model_calls_tools(llm):
    model = LocalModel(llm, max_tokens=100)
    transcript = Agent(model, calculator()).run("What is 4718 + 2593?")
    call, result = transcript.messages[1]["tool_calls"][0], transcript.messages[2]
    assert call["id"] == "call_1_0" == result["tool_call_id"]
    assert json.loads(call["function"]["arguments"]) == {"a": 4718, "b": 2593}
    assert transcript.answer == "4718 + 2593 = 7311."
    assert (model.usage.requests, transcript.steps) == (2, 2)
    assert 0 < model.usage.cached_tokens < model.usage.prompt_tokens


def test_scripted_local_model_still_counts_prompt_tokens(llm):
    model = LocalModel(llm, script=ScriptedModel([assistant("Seven.")]))
    assert model.complete(QUESTION, DEFINITIONS, 0) == assistant("Seven.")
    assert model.usage.prompt_tokens > 100


def test_reasoning_that_the_prompt_opens_is_not_content(llm):
    """Templates that always think end with `<think>`."""
    output = mock.Mock(
        text="Add them.</think>\n\nSeven.",
        prompt_token_ids=llm.tokenizer.encode("assistant\n<think>\n"),
        num_cached_tokens=0,
        error=None,
        finish_reason="stop",
    )
    with mock.patch.object(llm, "generate", return_value=[output]):
        assert LocalModel(llm).complete(QUESTION, [], 0) == assistant("Seven.")


def test_prompt_beyond_the_context_is_a_user_error(llm):
    with pytest.raises(UserError, match="context"):
        LocalModel(llm).complete([{"role": "user", "content": "word " * 5000}], [], 0)


def test_scripted_model():
    script = ScriptedModel.from_json('[[["add", {"a": 1}], ["add", "{"]], "Done."]')
    calls = script.complete(QUESTION, [], 0)["tool_calls"]
    assert [call["id"] for call in calls] == ["call_0_0", "call_0_1"]
    assert [call["function"]["arguments"] for call in calls] == ['{"a": 1}', "{"]
    assert script.complete(QUESTION, [], 0)["content"] == "Done."
    with pytest.raises(UserError, match="the script has only 2 messages"):
        script.complete(QUESTION, [], 0)
    by_seed = ScriptedModel(lambda messages, seed: assistant(f"seed {seed}"))
    assert by_seed.complete(QUESTION, [], 5)["content"] == "seed 5"


@pytest.mark.parametrize("text", ["{", "3", "[3]", "[[3]]"])
def test_invalid_scripts(text):
    with pytest.raises(UserError, match="a script must be a JSON list, e.g."):
        ScriptedModel.from_json(text)


def open_model(monkeypatch, reply, **options):
    """(model of a server that replies with JSON or bytes, the requests that it gets)."""
    content = reply if isinstance(reply, bytes) else json.dumps(reply)
    requests = stub_server(monkeypatch, content)
    return OpenAIModel("http://stub/v1", **options), requests


def test_file_names_that_are_not_utf8_can_be_sent(monkeypatch):
    reply = {"choices": [{"message": {"content": "Yes."}}]}
    model, requests = open_model(monkeypatch, reply, model="name")
    model.complete([{"role": "tool", "content": "caf\udce9.txt"}], [], 0)
    assert json.loads(requests[-1].content)["messages"][0]["content"] == "caf\udce9.txt"


def test_reply_and_request_of_a_server(monkeypatch):
    message = assistant(None, ("add", {"a": 1, "b": 2}))
    usage = {"prompt_tokens": 50, "prompt_tokens_details": {"cached_tokens": 40}}
    reply = {"choices": [{"message": message}], "usage": usage, "data": [{"id": "first"}]}
    model, requests = open_model(monkeypatch, reply, api_key="secret", temperature=0.5)
    assert model.complete(QUESTION, DEFINITIONS, 7) == message
    assert model.usage.hit_rate == 0.8
    assert [str(request.url) for request in requests] == [
        "http://stub/v1/models",
        "http://stub/v1/chat/completions",
    ]
    assert requests[-1].headers["Authorization"] == "Bearer secret"
    assert json.loads(requests[-1].content) == {
        "model": "first",
        "messages": QUESTION,
        "tools": DEFINITIONS,
        "seed": 7,
        "temperature": 0.5,
    }


TEXT = {"content": "Yes."}
CALL = {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}
MALFORMED = [
    *(None, "text", [], [1], {}, {"choices": None}, {"choices": "x"}, {"choices": []}),
    {"choices": [None]},
    *({"choices": [{"message": each}]} for each in (None, [], "x", {"content": ["a"]})),
    *({"choices": [{"message": {"tool_calls": each}}]} for each in ("x", 3, [None], ["x"], [{}])),
    *(
        {"choices": [{"message": {"tool_calls": [{**CALL, **each}]}}]}
        for each in (
            *({"id": None}, {"id": 3}, {"function": None}, {"function": "x"}, {"function": {}}),
            {"function": {"name": ["add"], "arguments": "{}"}},
            {"function": {"name": "add", "arguments": {"a": 1}}},
        )
    ),
    *(
        {"choices": [{"message": TEXT}], "usage": each}
        for each in ("x", [1], {"prompt_tokens": "x"}, {"prompt_tokens_details": "x"})
    ),
    *(b"[" * 10**5, b"{", b"", b"1" * 5000, b'{"a": ' * 10**5),
]


@pytest.mark.parametrize("reply", MALFORMED, ids=lambda reply: str(reply)[:60])
def test_malformed_replies_are_user_errors(monkeypatch, reply):
    model, _ = open_model(monkeypatch, reply, model="name")
    with pytest.raises(UserError, match="did not return a chat completion"):
        Agent(model, calculator(), max_steps=1).run("What is 1 + 2?")


def test_invalid_tools_are_rejected():
    with pytest.raises(UserError, match="the parameters of tool f are not a valid JSON schema: "):
        Tool("f", "", {"properties": 3}, str)
    with pytest.raises(UserError, match="tool names must be unique, got add"):
        Agent(ScriptedModel([]), [*calculator(), *calculator()])
    assert DEFINITIONS[0]["function"]["parameters"]["additionalProperties"] is False
