"""The agent's chat models: scripted, in-process engine, HTTP server."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from unittest import mock

import pytest

from tiny_llm import LLM, UserError
from tiny_llm.agent import Agent, LocalModel, OpenAIModel, ScriptedModel, Tool, assistant
from tiny_llm.agent.tools import calculator
from tiny_llm.cli.backends.remote import OpenAIClient

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


class ReplyServer(HTTPServer):
    reply: tuple[int, Any] = (200, {})
    requests: list[Any]


class Handler(BaseHTTPRequestHandler):
    server: ReplyServer

    def do_GET(self) -> None:
        self._send(200, {"data": [{"id": "first"}]})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, self.headers["Authorization"], json.loads(body)))
        self._send(*self.server.reply)

    def _send(self, status: int, reply: Any) -> None:
        data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ReplyServer]:
    server = ReplyServer(("127.0.0.1", 0), Handler)
    server.requests = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def url(server: ReplyServer) -> str:
    return f"http://127.0.0.1:{server.server_port}/v1"


def test_file_names_that_are_not_utf8_can_be_sent(server):
    server.reply = (200, {"choices": [{"message": {"content": "Yes."}}]})
    OpenAIModel(url(server)).complete([{"role": "tool", "content": "caf\udce9.txt"}], [], 0)
    assert server.requests[0][2]["messages"][0]["content"] == "caf\udce9.txt"


def test_reply_and_request_of_a_server(server):
    message = assistant(None, ("add", {"a": 1, "b": 2}))
    usage = {"prompt_tokens": 50, "prompt_tokens_details": {"cached_tokens": 40}}
    server.reply = (200, {"choices": [{"message": message}], "usage": usage})
    model = OpenAIModel(url(server), api_key="secret", temperature=0.5)
    assert model.complete(QUESTION, DEFINITIONS, 7) == message
    assert model.usage.hit_rate == 0.8
    [(path, key, body)] = server.requests
    assert (path, key) == ("/v1/chat/completions", "Bearer secret")
    assert body == {
        "model": "first",
        "messages": QUESTION,
        "tools": DEFINITIONS,
        "seed": 7,
        "temperature": 0.5,
    }


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((400, {"error": {"message": "too long"}}), "^server error 400: too long$"),
        ((200, {"choices": []}), "did not return a chat completion"),
        ((200, [1]), "did not return a chat completion"),
    ],
)
def test_server_errors(server, reply, message):
    server.reply = reply
    with pytest.raises(UserError, match=message):
        OpenAIModel(url(server), "name").complete(QUESTION, [], 0)


TEXT = {"content": "Yes."}
CALL = {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}
MALFORMED = [
    *(None, "text", [], {}, {"choices": None}, {"choices": "x"}, {"choices": [None]}),
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
        for each in ("x", [1], {"prompt_tokens": "x"})
    ),
    {"choices": [{"message": TEXT}], "usage": {"prompt_tokens_details": "x"}},
]


@pytest.mark.parametrize("reply", MALFORMED, ids=str)
def test_malformed_replies_are_user_errors(server, reply):
    server.reply = (200, reply)
    agent = Agent(OpenAIModel(url(server), "name"), calculator(), max_steps=1)
    with pytest.raises(UserError, match="did not return a chat completion"):
        agent.run("What is 1 + 2?")


@pytest.mark.parametrize("text", ["[" * 10**5, "{", "", "1" * 5000, '{"a": ' * 10**5])
def test_reply_that_is_not_json(server, text):
    server.reply = (200, text.encode())
    with pytest.raises(UserError, match="did not return a chat completion"):
        OpenAIModel(url(server), "name").complete(QUESTION, [], 0)
    server.reply = (500, text.encode())
    with pytest.raises(UserError, match="server error 500: "):
        OpenAIModel(url(server), "name").complete(QUESTION, [], 0)


@pytest.mark.parametrize(
    "event",
    [
        *("null", "[]", "3", "{", '{"choices": [{}]}', '{"choices": [{"delta": null}]}'),
        *('{"choices": [{"delta": "x"}]}', '{"choices": [{"delta": {"content": 3}}]}', "[" * 10**5),
        '{"choices": [{"delta": {"reasoning_content": ["x"]}}]}',
    ],
)
def test_malformed_events_are_user_errors(server, event):
    server.reply = (200, f"data: {event}\n\ndata: [DONE]\n\n".encode())
    with pytest.raises(UserError, match="malformed event from the server"):
        list(OpenAIClient(url(server), "name").stream({"messages": QUESTION}))


def test_unreachable_server():
    with pytest.raises(
        UserError, match="request to http.* failed: .*`tiny-llm serve` starts a server"
    ):
        OpenAIModel("http://127.0.0.1:9")
    with pytest.raises(UserError, match="the URL must start with http"):
        OpenAIModel("localhost:8000")


def test_invalid_tools_are_rejected():
    with pytest.raises(UserError, match="the parameters of tool f are not a valid JSON schema: "):
        Tool("f", "", {"properties": 3}, str)
    with pytest.raises(UserError, match="tool names must be unique, got add"):
        Agent(ScriptedModel([]), [*calculator(), *calculator()])
    assert DEFINITIONS[0]["function"]["parameters"]["additionalProperties"] is False
