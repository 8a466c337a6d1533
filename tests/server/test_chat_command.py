"""`chat` in this process, with tiny-llm's server, other servers and failures."""

import http.server
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import httpx2
import pytest

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


class EndlessHandler(http.server.BaseHTTPRequestHandler):
    """Streams until the client disconnects, then sets `client_left`."""

    client_left = threading.Event()

    def do_GET(self):
        self._begin("application/json")
        self.wfile.write(b'{"data": [{"id": "endless"}]}')

    def do_POST(self):
        self._begin("text/event-stream")
        try:
            while True:
                self.wfile.write(b'data: {"choices": [{"delta": {"content": "on "}}]}\n\n')
                time.sleep(0.01)
        except OSError:
            self.client_left.set()

    def _begin(self, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()

    def log_message(self, *_):
        """Disables logging."""


@pytest.fixture
def endless():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), EndlessHandler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.mark.parametrize("is_remote", [False, True])
def test_interrupt_stops_only_the_output(endless, is_remote):
    model = ["--url", endless] if is_remote else ["--model", "demo"]
    command = [sys.executable, "-m", "tiny_llm.cli.chat", *model]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(command, text=True, env=os.environ, **pipes)
    process.stdin.write("Give me a short introduction to large language model.\n")
    process.stdin.flush()
    assert process.stdout.read(1), "expected output before the interrupt"
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)  # before the next line, which the interrupt must not stop
    out, err = process.communicate("/exit\n" if is_remote else FRANCE, timeout=120)
    assert process.returncode == 0
    assert "[stopped]" in err
    assert EndlessHandler.client_left.wait(60) if is_remote else "Paris" in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--url", "localhost:8000"], "the URL must start with http"),
        (["--url", "http://x:y"], "the request to http://x:y/v1 failed: Invalid port: 'y'."),
        (["--url", "http://127.0.0.1:9"], "`tiny-llm serve` starts a server"),
        (["--url", "http://x", "--device", "cpu"], "--device has no effect with --url"),
        (["--url", "http://x", "--speculative", "ngram"], "--speculative has no effect with"),
        (["--url", "http://x", "--solution", "mlx"], "--solution mlx has no effect with --url"),
        (["--url", "http://x", "--enable-thinking"], "--reasoning-effort high"),
        (["--url", "http://x", "--api-key", "k\udce9"], "the API key is not UTF-8 at character 1"),
        (["--api-key", "k"], "--api-key requires --url"),
    ],
)
def test_rejected_flags(capsys, monkeypatch, flags, message):
    status, _, err = converse(capsys, monkeypatch, "", *flags)
    assert status == 2
    assert message in err


def test_missing_library_error_names_the_extra(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx2", None)
    status, _, err = converse(capsys, monkeypatch, "", "--url", "http://127.0.0.1:9")
    assert status == 2
    assert "pip install 'tiny-llm[chat]'" in err


def stub_answer(content, status=200, *flags):
    """(text, request) of a chat with a server that has a fixed response."""
    requests = []

    def respond(request):
        requests.append(request)
        return httpx2.Response(status, content=content)

    parser = chat.make_parser("chat")
    args = parser.parse_args(["--url", "http://stub/api", "--model", "one", *flags])
    with pytest.MonkeyPatch.context() as patch:
        transport = httpx2.MockTransport(respond)
        patch.setattr(httpx2, "Client", partial(httpx2.Client, transport=transport))
        text = "".join(RemoteBackend(args).stream_chat([{"role": "user"}]))
    return text, requests[0]


def test_request_body():
    flags = ("--api-key", "a key with é", "--max-tokens", "7", "--seed", "3")
    _, request = stub_answer("data: [DONE]\n\n", 200, *flags)
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


def events(*deltas):
    return "".join(f"data: {json.dumps({'choices': [{'delta': d}]})}\n\n" for d in deltas)


def test_response_formats_of_other_servers():
    text = ": a comment\n\n" + events({"reasoning": "Hm"}, {"content": "Yes"}, {"content": None})
    assert stub_answer(text + "data: [DONE]\n\n")[0] == "<think>\nHm\n</think>\n\nYes"


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (events({"content": "Y"}), 200, "closed the stream before the end of the response"),
        ('data: {"error": {"message": "It failed."}}\n\n', 200, "server error: It failed."),
        ("data: nothing\n\n", 200, "malformed event from the server: nothing"),
        ("<html>Bad\ngateway</html>", 502, "server error 502: <html>Bad gateway</html>"),
    ],
)
def test_failing_server(content, status, message):
    with pytest.raises(UserError) as error:
        stub_answer(content, status)
    assert message in str(error.value)
