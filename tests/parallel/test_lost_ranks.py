"""Lost ranks: the whole group exits with an error message within ten seconds."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.parallel.support import (
    EXIT_SECONDS,
    lose_rank,
    mlx_launch,
    start_group,
    start_without_waiting,
    wait_for_exit,
    wait_until_exited,
)


def test_dead_rank_ends_the_group():
    program, ranks = start_group(delay=random.Random(5).uniform(0, 0.5))
    os.kill(ranks[0], signal.SIGKILL)
    status, errors = wait_for_exit(program, EXIT_SECONDS)
    assert status == 1
    assert "tiny-llm: rank 1 of 2 is lost: killed by signal 9." in errors
    assert wait_until_exited(ranks, 2)


@pytest.mark.slow
def test_paused_rank_does_not_end_the_group():
    """A busy machine can pause a process for seconds."""
    program, ranks = start_group()
    os.kill(ranks[0], signal.SIGSTOP)
    time.sleep(8)
    os.kill(ranks[0], signal.SIGCONT)
    assert program.stdout is not None
    for _ in range(2):  # the first may have completed before the pause
        assert program.stdout.readline() == "completed\n"
    program.kill()
    program.communicate()


@pytest.mark.slow
def test_workers_exit_when_rank_0_is_killed():
    program, ranks = start_group()
    program.kill()
    program.communicate()
    assert wait_until_exited(ranks, EXIT_SECONDS)


@pytest.mark.slow
def test_workers_exit_with_rank_0():
    program = "from tiny_llm import LLM; LLM('demo', kv_cache_bytes=2**24, tensor_parallel_size=2)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_init_timeout():
    """A worker is lost after its imports; MLX's ring waits for it and holds the GIL."""
    program = (
        "from tiny_llm.models.parallel import launch; launch.SPAWN_TIMEOUT_SECONDS = 1.0; "
        "launch.WORKER_PROGRAM = 'import os; os.write(1, b\".\"); os.read(0, 1)'; "
        "launch.get_group(2)"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "Timeout (0:00:01)!" in done.stderr
    assert "in join_launched_ranks" in done.stderr
    assert time.monotonic() - started < EXIT_SECONDS


@pytest.mark.slow
@pytest.mark.exhaustive
def test_ranks_killed_at_random_moments():
    """Kills a rank at fifty random times during startup, loading or generation."""
    rng = random.Random(1)
    for _ in range(50):
        program, ranks = start_without_waiting()
        delay, is_first = rng.uniform(0, 6), rng.random() < 0.3
        time.sleep(delay)
        os.kill(program.pid if is_first else ranks[0], signal.SIGKILL)
        killed_at = time.monotonic()
        status, errors = wait_for_exit(program, 3 * EXIT_SECONDS)
        left = EXIT_SECONDS - (time.monotonic() - killed_at)
        assert wait_until_exited(ranks, left), (delay, is_first)
        seconds = time.monotonic() - killed_at
        print(f"rank {1 - is_first}, {delay:.2f} s: exited after {seconds:.2f} s")
        assert status != 0
        if not is_first:
            messages = ("rank 1 of 2 is lost: ", "failed to start", "in join_launched_ranks")
            assert any(message in errors for message in messages), (delay, errors)


@pytest.mark.slow
def test_ranks_of_mlx_launch_exit_together(exhaustive):
    for rank in (1, 0) if exhaustive else (1,):
        with mlx_launch("chat", "--model", "demo", "--device", "cpu") as launcher:
            lose_rank(launcher, rank)
