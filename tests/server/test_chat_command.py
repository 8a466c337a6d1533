"""`chat` in this process, with tiny-llm's server, other servers and failures."""

import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.cli.support import stub_server
from tests.server.running_server import eventually, served
from tiny_llm.cli import chat
from tiny_llm.cli.backends.remote import RemoteBackend
from tiny_llm.errors import UserError

FRANCE = "What is the capital of France?\n"
PARIS = "The capital of France is Paris."


def converse(capsys, monkeypatch, lines, *flags):
    """Types `lines` into `tiny-llm chat`; returns (exit status, stdout, stderr)."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    status = chat.main(flags)
    out, err = capsys.readouterr()
    return status, out, " ".join(err.split())


@pytest.fixture(params=["engine", "week3", "url"])
def model(request):
    """Flags that select the demo model in this process or on the server."""
    if request.param != "url":
        return ["--model", "demo", "--max-tokens", "80", "--loader", request.param]
    return ["--url", request.getfixturevalue("server").url]


each_backend = pytest.mark.parametrize("model", ["engine", "url"], indirect=True)


def test_history_is_kept_and_cleared(capsys, monkeypatch, model):
    lines = "My name is Tom.\nWhat is my name?\n/reset\nWhat is my name?\n"
    is_remote = "--url" in model
    effort = ["--reasoning-effort", "none"] if is_remote else []
    status, out, err = converse(capsys, monkeypatch, lines, *model, *effort)
    assert status == 0
    _, named, unnamed = out.splitlines()
    assert "Tom" in named
    assert "Tom" not in unnamed
    assert "history cleared" in err
    assert (f"model: demo at {model[1]}/v1" if is_remote else "model: demo") in err


@each_backend
def test_reasoning_is_printed_but_not_kept(capsys, monkeypatch, model):
    contents = []
    ask = chat.ChatSession.ask

    def recording(self, text):
        ask(self, text)
        contents[:] = [message["content"] for message in self.messages]

    monkeypatch.setattr(chat.ChatSession, "ask", recording)
    thinking = [] if "--url" in model else ["--enable-thinking"]
    _, out, _ = converse(capsys, monkeypatch, FRANCE * 2, *model, *thinking)
    assert out.startswith("<think>\n")
    assert f"\n</think>\n\n{PARIS}\n" in out
    assert contents[:3] == [FRANCE.strip(), PARIS, FRANCE.strip()]


@each_backend
def test_chat_continues_after_an_overlong_turn(capsys, monkeypatch, model):
    effort = ["--reasoning-effort", "none"] if "--url" in model else []
    lines = "word " * 3000 + "\n" + FRANCE
    status, out, err = converse(capsys, monkeypatch, lines, *model, *effort)
    assert (status, out) == (0, f"{PARIS}\n")
    remote = "server error 400: The prompt is too long"
    assert (remote if effort else "the model's context length is") in err


def test_unknown_command_and_exit(capsys, monkeypatch):
    _, out, err = converse(capsys, monkeypatch, "/help\n\n/exit\nHello!\n", "--model", "demo")
    assert out == "", "chat must ignore input after /exit"
    assert "unknown command /help; /reset clears" in err


slow_server = served(fault="slow")


@pytest.mark.parametrize("is_remote", [False, True])
def test_interrupt_stops_only_the_output(request, is_remote):
    server = request.getfixturevalue("slow_server") if is_remote else None
    model = ["--url", server.url] if is_remote else ["--model", "demo"]
    command = [sys.executable, "-m", "tiny_llm.cli.chat", *model]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(command, text=True, env=os.environ, **pipes)
    process.stdin.write("Give me a short introduction to large language model.\n")
    process.stdin.flush()
    assert process.stdout.read(1), "expected output before the interrupt"
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)  # before the next line, which the interrupt must not stop
    assert not is_remote or eventually(lambda: server.is_empty)
    out, err = process.communicate(FRANCE, timeout=120)
    assert process.returncode == 0
    assert "[stopped]" in err
    assert "Paris" in out


def test_missing_library_error_names_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx2", None)
    status, _, err = converse(capsys, monkeypatch, "", "--url", "http://127.0.0.1:9")
    assert status == 2
    assert "pip install 'tiny-llm[chat]'" in err


def stub_answer(monkeypatch, content, status=200, *flags):
    """(text, request) of a chat with a server that has a fixed response."""
    requests = stub_server(monkeypatch, content, status)
    args = chat.make_parser("chat").parse_args(
        ["--url", "http://stub/api", "--model", "one", *flags]
    )
    return "".join(RemoteBackend(args).stream_chat([{"role": "user"}])), requests[0]


def events(*deltas):
    return "".join(f"data: {json.dumps({'choices': [{'delta': d}]})}\n\n" for d in deltas)


def test_request_and_response(monkeypatch):
    """The field `reasoning` is that of other servers."""
    text = ": a comment\n\n" + events({"reasoning": "Hm"}, {"content": "Yes"}, {"content": None})
    flags = ("--api-key", "a key with é", "--max-tokens", "7", "--seed", "3")
    text, request = stub_answer(monkeypatch, text + "data: [DONE]\n\n", 200, *flags)
    assert text == "<think>\nHm\n</think>\n\nYes"
    assert request.url == "http://stub/api/chat/completions"
    assert dict(request.headers.raw)[b"Authorization"] == "Bearer a key with é".encode()
    assert json.loads(request.content) == {
        "model": "one",
        "messages": [{"role": "user"}],
        "stream": True,
        "temperature": 0.0,
        "max_completion_tokens": 7,
        "seed": 3,
    }


def test_api_key_of_the_environment(monkeypatch):
    monkeypatch.setenv("TINY_LLM_API_KEY", "secret")
    _, request = stub_answer(monkeypatch, "data: [DONE]\n\n")
    assert request.headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (events({"content": "Y"}), 200, "closed the stream before the end of the response"),
        ('data: {"error": {"message": "It failed."}}\n\n', 200, "server error: It failed."),
        *(
            (f"data: {event}\n\ndata: [DONE]\n\n", 200, "malformed event from the server: ")
            for event in ("nothing", "null", "[]", "3", "{", '{"choices": [{}]}', "[" * 10**5)
        ),
        *(
            (events(delta) + "data: [DONE]\n\n", 200, "malformed event from the server: ")
            for delta in (None, "x", {"content": 3}, {"reasoning_content": ["x"]})
        ),
        ('{"error": {"message": "too long"}}', 400, "server error 400: too long"),
        ("<html>Bad\ngateway</html>", 502, "server error 502: <html>Bad gateway</html>"),
        *((text, 500, "server error 500: ") for text in ("[" * 10**5, "{", "", "1" * 5000)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_failing_server(monkeypatch, content, status, message):
    with pytest.raises(UserError) as error:
        stub_answer(monkeypatch, content, status)
    assert message in str(error.value)
