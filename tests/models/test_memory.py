"""Memory that was freed goes back to the system."""

import ctypes
import resource

import pytest

from tiny_llm.models.memory import trim_heap


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="only glibc can be asked")
def test_holes_between_blocks_are_given_back():
    blocks = [bytes(2000) for _ in range(20_000)]  # 40 MB
    kept = blocks[::64]  # nothing can shrink from its end
    del blocks
    before = resident_bytes()
    trim_heap()
    assert before - resident_bytes() > 20e6
    assert all(len(block) == 2000 for block in kept)
