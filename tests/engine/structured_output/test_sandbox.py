"""Sandboxed processes: time, memory and size limits; restarts; concurrent requests."""

import threading
from dataclasses import replace

import pytest

from tiny_llm.engine.structured_output.sandboxed_process import SandboxedProcess

HANDLER = """
def make_handler(suffix):
    def handle(source, **names):
        return {"text": eval(source, {}, names) + suffix}

    return handle
"""


@pytest.fixture
def process(tmp_path):
    (tmp_path / "handler.py").write_text(HANDLER)
    process = SandboxedProcess(tmp_path / "handler.py", ["."], 30.0, 10_000, 2**28)
    yield process
    process.close()


def run(process, source, **names):
    return process.request({"source": source, **names})["text"]


SOURCES = {
    "longer than 1 second": "sum(range(10 ** 10))",
    "too much memory": "'a' * 10 ** 10",
    "more than 10,000 bytes": "'a' * 20_000",
    "nested too deeply": "(f := lambda g: g(g))(f)",
    "division by zero": "1 / 0",
}


@pytest.mark.parametrize("reason", SOURCES)
def test_failed_request_is_an_error_and_the_next_one_succeeds(process, reason):
    process.seconds = 1.0
    with pytest.raises(ValueError, match=reason):
        run(process, SOURCES[reason])
    assert run(process, "'b'") == "b."


def test_waiting_is_not_processor_time(process):
    process.seconds = 0.2
    assert run(process, "[__import__('time').sleep(0.4), 'a'][1]") == "a."


def test_killed_process_is_restarted(process):
    assert run(process, "'a'") == "a."
    process._process.kill()
    process._process.wait()
    assert run(process, "'b'") == "b."


def test_messages_larger_than_a_pipe_buffer(process):
    text = "x" * 300_000
    with_room = replace(process, max_bytes=400_000)
    assert run(with_room, "text", text=text) == f"{text}."
    with_room.close()


def test_concurrent_threads_are_serialized(process):
    actual = {}

    def run_number(number):
        actual[number] = run(process, "str(number)", number=number)

    threads = [threading.Thread(target=run_number, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert actual == {number: f"{number}." for number in range(8)}


def test_handler_that_cannot_be_loaded(process):
    process.handler.write_text("1 / 0")
    with pytest.raises(ValueError, match="division by zero"):
        run(process, "'a'")
