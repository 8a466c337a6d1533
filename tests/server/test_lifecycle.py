"""Server lifecycle: draining, engine failures."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.server.fault_injection import FAULTY_PROMPT
from tests.server.protocol.test_disconnect import LONG, connect
from tests.server.running_server import RunningServer, eventually, read_all

SHORT = {"messages": [{"role": "user", "content": "Hello"}], "reasoning_effort": "none"}
FAULTY_BODY = {"prompt": FAULTY_PROMPT}


@pytest.mark.slow
def test_pause_then_sigterm():
    """The watchdog ignores a pause; SIGTERM lets running requests finish."""
    server = RunningServer("--watchdog", "2", fault="slow")

    @contextmanager
    def generating(num_tokens):
        with ThreadPoolExecutor(1) as pool:
            body = {**LONG, "max_tokens": num_tokens}
            response = pool.submit(server.post, "/v1/chat/completions", body)
            assert eventually(lambda: server.metric("num_requests_running") == 1)
            yield
            assert response.result().json()["usage"]["completion_tokens"] == num_tokens

    with generating(20):
        server.process.send_signal(signal.SIGTSTP)
        time.sleep(3)
        server.process.send_signal(signal.SIGCONT)
    with generating(30):
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("draining: 1 requests")
        assert "shutting down" in server.reject("/v1/chat/completions", SHORT, 503)
        assert server.get("/ready").status_code == 503
        assert server.get("/health").status_code == 200
    assert server.process.wait(30) == 0


def terminate_during_a_stream(*flags):
    """(server, connection of a stream) after SIGTERM."""
    server = RunningServer(*flags, fault="slow")
    connection = connect(server, {**LONG, "stream": True})
    assert connection.recv(10)
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("draining: ")
    return server, connection


@pytest.mark.slow
def test_drain_timeout_fails_running_requests():
    server, connection = terminate_during_a_stream("--drain-timeout", "0.5")
    received = read_all(connection)
    assert b"the drain timeout has expired" in received
    assert b"data: [DONE]" in received
    assert server.process.wait(30) == 0


@pytest.mark.slow
def test_second_signal_exits_immediately():
    server, connection = terminate_during_a_stream()
    assert server.stop() == 130
    connection.close()


@pytest.mark.slow
def test_failed_step_fails_only_its_requests():
    with RunningServer(fault="raises") as server:
        for stream in (False, True):
            failed = server.post("/v1/completions", {**FAULTY_BODY, "stream": stream})
            assert "The engine failed" in failed.text
            assert "secret" not in failed.text
            assert failed.status_code == (200 if stream else 500)
            assert server.post("/v1/chat/completions", SHORT).status_code == 200
            assert server.is_empty
        assert "broken in /secret/path" in "".join(server.lines)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hangs", "dies"])
def test_watchdog_exits_when_the_engine_hangs_or_dies(fault):
    """The requests of other models fail as well."""
    models = ("--model", "demo", "--model", "demo-draft")
    server = RunningServer(*models, "--watchdog", "2", fault=fault)
    long = {"prompt": "Once", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    other = connect(server, {**long, "model": "demo-draft"}, "/v1/completions")
    assert other.recv(10)
    connection = connect(server, {**FAULTY_BODY, "stream": True}, "/v1/completions")
    server.wait_for("exiting after a failure: ")
    ready = server.get("/ready")
    assert ready.status_code == 503
    assert "engine" in ready.json()["error"]["message"]
    server.reject("/v1/chat/completions", SHORT, 503)
    assert b"The engine failed" in read_all(connection)
    assert read_all(other).endswith(b"0\r\n\r\n"), "the stream must be terminated"
    assert server.process.wait(30) == 1
    assert 'File "' in "".join(server.lines), "the log must contain a stack trace"
