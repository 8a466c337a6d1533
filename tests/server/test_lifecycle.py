"""Server lifecycle: rejected flags, draining, engine failures."""

import signal
import threading
import time

import pytest

from tests.server.fault_injection import FAULTY_PROMPT
from tests.server.protocol.test_disconnect import LONG, connect
from tests.server.running_server import RunningServer, eventually
from tiny_llm.cli import serve

SHORT = {"messages": [{"role": "user", "content": "Hello"}], "reasoning_effort": "none"}
FAULTY_BODY = {"prompt": FAULTY_PROMPT}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host", "0.0.0.0"], "exposes the server to other machines without an API key"),
        (["--port", "70000"], "--port: must be between 0 and 65535, got 70000"),
        (["--watchdog", "0"], "--watchdog: must be at least 0.001, got 0"),
        (["--max-queue", "-1"], "--max-queue: must be at least 0, got -1"),
        (["--generation-config", "mine"], "--generation-config: invalid choice: 'mine'"),
        (["--block-size", "0"], "--block-size: must be at least 1, got 0"),
        (["--model", "nothing"], "unknown model 'nothing'"),
    ],
)
def test_rejected_flags(capsys, monkeypatch, flags, message):
    monkeypatch.delenv("TINY_LLM_API_KEY", raising=False)
    assert serve.main(flags) == 2
    assert message in capsys.readouterr().err


def test_missing_libraries_error_names_the_extra(capsys, monkeypatch):
    monkeypatch.setattr(serve, "LIBRARIES", ("fastapi", "no_such_library"))
    assert serve.main([]) == 2
    assert (
        "requires no_such_library; run `pip install 'tiny-llm[serve]'`" in capsys.readouterr().err
    )


def test_port_in_use(capsys, server):
    port = server.url.rpartition(":")[2]
    assert serve.main(["--model", "demo", "--port", port]) == 2
    assert "choose another --port" in capsys.readouterr().err


@pytest.mark.slow
def test_pause_then_sigterm():
    """The watchdog ignores a pause; SIGTERM lets running requests finish."""
    server = RunningServer("--watchdog", "2", fault="slow")
    pause_during_generation(server)
    terminate_during_generation(server)


def pause_during_generation(server):
    body = {"prompt": "Hello", "max_tokens": 20, "ignore_eos": True}
    responses = []
    running = threading.Thread(
        target=lambda: responses.append(server.post("/v1/completions", body))
    )
    running.start()
    assert eventually(lambda: server.metric("num_requests_running") == 1)
    server.process.send_signal(signal.SIGTSTP)
    time.sleep(3)
    server.process.send_signal(signal.SIGCONT)
    running.join(60)
    assert responses[0].json()["usage"]["completion_tokens"] == 20


def terminate_during_generation(server):
    responses = []
    body = {**LONG, "max_tokens": 30}
    running = threading.Thread(
        target=lambda: responses.append(server.post("/v1/chat/completions", body))
    )
    running.start()
    assert eventually(lambda: server.metric("num_requests_running") == 1)
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("draining: 1 requests")
    rejected = server.post("/v1/chat/completions", SHORT)
    assert rejected.status_code == 503
    assert "shutting down" in rejected.json()["error"]["message"]
    assert server.get("/ready").status_code == 503
    assert server.get("/health").status_code == 200
    running.join()
    assert responses[0].json()["usage"]["completion_tokens"] == 30
    assert server.process.wait(30) == 0


@pytest.mark.slow
def test_drain_timeout_fails_running_requests():
    server = RunningServer("--drain-timeout", "0.5", fault="slow")
    connection = connect(server, {**LONG, "stream": True})
    assert connection.recv(10)
    server.process.send_signal(signal.SIGTERM)
    received = b""
    while data := connection.recv(65536):
        received += data
    assert b"the drain timeout has expired" in received
    assert b"data: [DONE]" in received
    assert server.process.wait(30) == 0


@pytest.mark.slow
def test_second_signal_exits_immediately():
    server = RunningServer(fault="slow")
    connection = connect(server, {**LONG, "stream": True})
    assert connection.recv(10)
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("draining: ")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(10) == 130
    connection.close()


@pytest.mark.slow
def test_failed_step_fails_only_its_requests():
    server = RunningServer(fault="raises")
    for stream in (False, True):
        failed = server.post("/v1/completions", {**FAULTY_BODY, "stream": stream})
        assert "The engine failed" in failed.text
        assert "secret" not in failed.text
        assert failed.status_code == (200 if stream else 500)
        assert server.post("/v1/chat/completions", SHORT).status_code == 200
        assert server.is_empty
    assert "broken in /secret/path" in "".join(server.lines)
    assert server.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hangs", "dies"])
def test_watchdog_exits_when_the_engine_hangs_or_dies(fault):
    server = RunningServer("--watchdog", "2", fault=fault)
    connection = connect(server, {**FAULTY_BODY, "stream": True}, "/v1/completions")
    server.wait_for("exiting after a failure: ")
    ready = server.get("/ready")
    assert ready.status_code == 503
    assert "engine" in ready.json()["error"]["message"]
    assert server.post("/v1/chat/completions", SHORT).status_code == 503
    received = b""
    while data := connection.recv(65536):
        received += data
    assert b"The engine failed" in received
    assert server.process.wait(30) == 1
    assert 'File "' in "".join(server.lines), "the log must contain a stack trace"
