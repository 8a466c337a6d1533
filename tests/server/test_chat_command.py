"""`chat --url` with tiny-llm, other servers and failures; rejected flags."""

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
from tiny_llm.cli.backends.remote import OpenAIClient, RemoteBackend
from tiny_llm.errors import UserError

FRANCE = "What is the capital of France?\n"


def converse(capsys, monkeypatch, lines, *flags):
    """Types `lines` into `tiny-llm chat`; returns (exit status, stdout, stderr)."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    status = chat.main(flags)
    out, err = capsys.readouterr()
    return status, out, " ".join(err.split())


def test_conversation(server, capsys, monkeypatch):
    flags = ("--url", server.url, "--reasoning-effort", "none")
    status, out, err = converse(capsys, monkeypatch, FRANCE + "/reset\n" + FRANCE, *flags)
    assert (status, out) == (0, "The capital of France is Paris.\n" * 2)
    assert f"model: demo at {server.url}/v1" in err


def test_reasoning_is_printed_but_not_sent_back(server, capsys, monkeypatch):
    bodies = []
    original = OpenAIClient.stream
    monkeypatch.setattr(
        OpenAIClient, "stream", lambda self, body: bodies.append(body) or original(self, body)
    )
    _, out, _ = converse(capsys, monkeypatch, FRANCE * 2, "--url", server.url)
    assert out.startswith("<think>\n")
    assert "\n</think>\n\nThe capital of France is Paris.\n" in out
    contents = [message["content"] for message in bodies[1]["messages"]]
    assert contents == [FRANCE.strip(), "The capital of France is Paris.", FRANCE.strip()]


def test_chat_continues_after_a_rejected_request(server, capsys, monkeypatch):
    flags = ("--url", server.url, "--reasoning-effort", "none")
    status, out, err = converse(capsys, monkeypatch, "word " * 3000 + "\n" + FRANCE, *flags)
    assert (status, out) == (0, "The capital of France is Paris.\n")
    assert "server error 400: The prompt is too long" in err


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


def test_interrupt_stops_only_the_output(endless):
    command = [sys.executable, "-m", "tiny_llm.cli.chat", "--url", endless]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(command, text=True, env=os.environ, **pipes)
    process.stdin.write("Tell me a long story about everything.\n")
    process.stdin.flush()
    assert process.stdout.read(1), "expected output before the interrupt"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate("/exit\n", timeout=60)
    assert process.returncode == 0
    assert "[stopped]" in err
    assert EndlessHandler.client_left.wait(60)


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


def stub_backend(content, status=200, *flags, requests=None):
    """Chat backend of a server with a fixed response."""

    def respond(request):
        if requests is not None:
            requests.append(request)
        return httpx2.Response(status, content=content)

    parser = chat.make_parser("chat")
    args = parser.parse_args(["--url", "http://stub/api", "--model", "one", *flags])
    with pytest.MonkeyPatch.context() as patch:
        transport = httpx2.MockTransport(respond)
        patch.setattr(httpx2, "Client", partial(httpx2.Client, transport=transport))
        return RemoteBackend(args)


def test_request_body():
    requests = []
    flags = ("--api-key", "a key with é", "--max-tokens", "7", "--seed", "3")
    list(
        stub_backend("data: [DONE]\n\n", 200, *flags, requests=requests).stream_chat(
            [{"role": "user"}]
        )
    )
    (request,) = requests
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
    assert (
        "".join(stub_backend(text + "data: [DONE]\n\n").stream_chat([]))
        == "<think>\nHm\n</think>\n\nYes"
    )


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
        list(stub_backend(content, status).stream_chat([]))
    assert message in str(error.value)
