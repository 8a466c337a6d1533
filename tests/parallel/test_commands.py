"""Commands with `--tensor-parallel-size`; a server that loses a rank."""

import json
import os
import signal
import time

import pytest

from tests.parallel.support import mlx_launch, ranks_of
from tests.server.running_server import RunningServer
from tiny_llm.cli import bench, main, serve

BENCH = ["--model", "demo", "--device", "cpu", "--num-seqs", "2", "--max-input-len", "40"]
BENCH += ["--min-output-len", "8", "--max-output-len", "8", "--loader", "engine"]


@pytest.mark.slow
@pytest.mark.usefixtures("on_cpu")
def test_commands_on_two_ranks(capsys):
    argv = ["--model", "demo", "--prompt", "What is RoPE?", "--max-tokens", "24"]
    assert main.main(argv) == 0
    one_rank = capsys.readouterr().out
    assert main.main([*argv, "--tensor-parallel-size", "2"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == one_rank.splitlines()[0]
    assert bench.main([*BENCH, "--tensor-parallel-size", "2"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["tensor_parallel_size"], result["output_tokens"]) == (2, 16)


@pytest.mark.parametrize(
    ("command", "flags", "message"),
    [
        (main, ["--loader", "week1"], "only the engine shards a model across processes"),
        (main, ["--loader", "week2"], "only the engine shards a model across processes"),
        (bench, ["--solution", "mlx"], "has no effect with --solution mlx"),
        (serve, ["--tensor-parallel-size", "-1"], "must be at least 1, got -1"),
        (main, ["--tp", "0"], "must be at least 1, got 0"),
        (main, ["--tensor-parallel-size", "3"], "num_attention_heads, 4, cannot be divided"),
    ],
)
def test_invalid_sizes_are_rejected(command, flags, message, capsys):
    assert command.main(["--model", "demo", "--tensor-parallel-size", "2", *flags]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_ranks_of_mlx_launch_generate(capfd):
    argv = ["main", "--model", "demo", "--device", "cpu", "--prompt", "What is RoPE?"]
    argv += ["--max-tokens", "24"]
    with mlx_launch(*argv) as launcher:
        stdout, errors = launcher.communicate(timeout=60)
    assert "exited with" not in errors  # printed only for a nonzero exit status
    assert main.main([*argv[1:], "--tensor-parallel-size", "2"]) == 0
    assert stdout.splitlines()[0] == capfd.readouterr().out.splitlines()[0]
    with mlx_launch(*argv, "--tensor-parallel-size", "3") as launcher:
        stdout, errors = launcher.communicate(timeout=60)
    assert "must be 2, the number of launched ranks, got 3; omit it" in errors
    assert stdout.strip() == ""


@pytest.mark.slow
def test_server_that_loses_a_rank_becomes_unready_and_exits():
    server = RunningServer("--tensor-parallel-size", "2")
    [rank] = ranks_of(server.process.pid)
    assert server.get("/ready").status_code == 200
    os.kill(rank, signal.SIGKILL)
    killed_at = time.monotonic()
    while (response := server.get("/ready")).status_code == 200:
        assert time.monotonic() < killed_at + 10
    assert response.status_code == 503
    assert "rank 1 of 2 is lost: killed by signal 9." in response.text
    assert server.process.wait(10) == 1
