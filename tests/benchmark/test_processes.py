"""Workers and servers: failed requests, and cleanup after a failed start."""

import argparse
import contextlib
import os
import sys

import pytest

from benchmark import (
    command,
    embeddings,
    fairness,
    http_serving,
    server_processes,
    tensor_parallel,
    week4,
)
from benchmark.server_processes import ServerProcess
from benchmark.systems.client import WorkerError, WorkerProcess
from tiny_llm import UserError

READY = '{"peak_bytes": 1, "about": "a script", "weight_bits": 4.0}'


@pytest.fixture
def run_week4(monkeypatch, tmp_path):
    """Returns a function that runs `week4` for one day on a fake worker.

    The function takes the worker's shell commands, and returns the exit status.
    """
    monkeypatch.setattr(command, "exit_on_sigterm", lambda: None)
    monkeypatch.setattr(week4, "DAYS", week4.DAYS[-1:])

    def run(answer: str) -> int:
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\necho '{READY}'\nread request\n{answer}\n")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        flags = ["--metrics=decode-128", "--rounds=1", "--limit=1"]
        monkeypatch.setattr(sys, "argv", ["week4", f"--model={tmp_path}", *flags])
        return week4.main()

    return run


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("""echo '{"failed": "ValueError: no kernel"}'""", ": ValueError: no kernel"),
        ("""echo '{"unsupported": "no batches"}'""", ": no batches"),
        ("echo out of memory >&2", " exited: out of memory"),
    ],
)
def test_failed_request_ends_the_benchmark(run_week4, capfd, answer, reason):
    assert run_week4(answer) == 2
    assert capfd.readouterr().err == f"week4: the solution's fastest{reason}\n"


def test_worker_that_has_exited_is_reported(tmp_path):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{READY}'\nread line\n")
    python.chmod(0o755)
    with contextlib.closing(WorkerProcess(str(python), "a_worker", [])) as worker:
        worker._process.kill()
        worker._process.wait()
        with pytest.raises(WorkerError, match="a exited: no output"):
            worker.ask({"kind": "decode", "tokens": 1, "batch": 1})


def test_timeout_is_an_upper_bound(run_week4, capfd):
    assert run_week4("exec sleep 60") == 0
    assert "| the solution's fastest | < 1.0 |" in capfd.readouterr().out


class Processes:
    """Stands in for a process class; the second process fails to start."""

    def __init__(self) -> None:
        self.open: list[object] = []

    def __call__(self, *args: object, **options: object) -> "Processes":
        if self.open:
            raise UserError("no port.")
        self.open.append(self)
        return self

    def pause(self) -> None:
        """No-op."""

    def wait_until_ready(self) -> None:
        """No-op."""

    def measure(self, task: str, number: int) -> float:
        """Not called."""
        raise NotImplementedError

    def close(self) -> None:
        self.open.remove(self)


def test_workers_are_closed_if_one_does_not_start(monkeypatch, tmp_path):
    processes = Processes()
    monkeypatch.setattr(embeddings, "WorkerProcess", processes)
    paths = dict.fromkeys(("bf16", "4bit", "gguf"), tmp_path)
    monkeypatch.setattr(embeddings, "write_models", lambda work: paths)
    args = argparse.Namespace(work=tmp_path, torch_python="", llama_python="", rounds=1)
    with pytest.raises(UserError, match="no port"):
        embeddings.run(args)
    assert not processes.open


def test_ranks_are_closed_if_a_system_does_not_start(monkeypatch, capsys):
    processes = Processes()
    monkeypatch.setattr(command, "exit_on_sigterm", lambda: None)
    monkeypatch.setattr(tensor_parallel, "ChildProcesses", processes)
    monkeypatch.setattr(sys, "argv", ["tensor_parallel", "--model=demo"])
    assert tensor_parallel.main() == 2
    assert capsys.readouterr().err == "tensor_parallel: no port.\n"
    assert not processes.open


def test_servers_are_closed_if_one_does_not_start(monkeypatch):
    processes = Processes()
    monkeypatch.setattr(fairness, "our_server", processes)
    with pytest.raises(UserError, match="no port"):
        fairness.run(argparse.Namespace(model="", policies=fairness.POLICIES, rounds=1))
    assert not processes.open


@pytest.mark.parametrize("failing", ["InProcess", "llama_server"])
def test_server_is_closed_if_its_peer_does_not_start(monkeypatch, failing):
    processes = Processes()
    monkeypatch.setattr(http_serving, "InProcess", lambda *args: None)
    for name in ("our_server", failing):
        monkeypatch.setattr(http_serving, name, processes)
    options = {"llama_server": "llama", "gguf": None, "max_len": 4}
    args = argparse.Namespace(model="", clients=[1], request_rate=None, **options)
    with pytest.raises(UserError, match="no port"):
        http_serving.compare(args, vocab_size=8)
    assert not processes.open


def test_server_is_terminated_if_its_start_is_interrupted(monkeypatch, tmp_path):
    pid = tmp_path / "pid"

    def is_ready(server: ServerProcess, path: str) -> bool:
        if pid.exists() and pid.read_text().endswith("\n"):
            sys.exit(1)  # as on SIGTERM
        return False

    monkeypatch.setattr(server_processes.ServerProcess, "_is_ready", is_ready)
    with pytest.raises(SystemExit):
        ServerProcess(["sh", "-c", f"echo $$ > {pid}; exec sleep 60"], "/ready")
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
