"""Calls that run on all ranks: replicas, deletion, failures."""

import gc
import subprocess
import sys
from typing import Any

import pytest

from tiny_llm import LLM
from tiny_llm.models.parallel.launch import current_group

pytestmark = pytest.mark.usefixtures("on_cpu")

# Sets `counts` to the number of replicas that each rank keeps; rank 0 keeps none.
COUNT_REPLICAS = """
from tiny_llm.models.parallel import group, launch
counts = group.gather_text(str(len(group._replicas)), launch.current_group().comm)
"""

FAIL = """
from tiny_llm import UserError
from tiny_llm.models.parallel.launch import get_group
group = get_group(2)
try:
    group.run(exec, "from tiny_llm.models.parallel.launch import current_group; " + {!r})
except ZeroDivisionError:
    try:
        group.run(print)
    except UserError as error:
        print(error)
"""


def count_replicas() -> list[str]:
    names: dict[str, Any] = {}
    current_group().run(exec, COUNT_REPLICAS, names)
    counts: list[str] = names["counts"]
    return counts


def test_workers_delete_what_rank_0_has_deleted():
    llm = LLM("demo", kv_cache_bytes=2**24, tensor_parallel_size=2)
    other = LLM("demo", kv_cache_bytes=2**24, tensor_parallel_size=2)
    gc.collect()
    before = count_replicas()
    del llm
    gc.collect()
    after = count_replicas()
    assert before[0] == after[0] == "0"
    assert int(after[1]) < int(before[1])
    assert other.generate([[5]])[0].finished


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "status", "stdout", "stderr"),
    [
        (
            "current_group().rank or 1 / 0",
            0,
            "the rank group has shut down: a call failed on rank 0.",
            "",
        ),
        (
            "1 / (1 - current_group().rank)",
            1,
            "",
            "tiny-llm: rank 1: ZeroDivisionError: division by zero",
        ),
    ],
    ids=["rank 0", "rank 1"],
)
def test_failed_call_ends_the_group(call, status, stdout, stderr):
    # Rank 0 waits for the failed rank.
    wait = "; current_group().rank or __import__('time').sleep(9)"
    program = FAIL.format(call + (wait if status else ""))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (status, stdout)
    assert stderr in done.stderr
    assert ("rank 1 of 2 is lost: exit status 1." in done.stderr) == (status == 1)
