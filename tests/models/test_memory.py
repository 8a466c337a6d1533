"""Freed memory is returned to the operating system."""

import ctypes
import resource

import pytest

from tiny_llm.models.memory import trim_heap


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc's malloc_trim"
)
def test_holes_between_blocks_are_released():
    blocks = [bytes(2000) for _ in range(20_000)]  # 40 MB
    kept = blocks[::64]  # pins the top of the heap
    del blocks
    before = resident_bytes()
    trim_heap()
    assert before - resident_bytes() > 20e6
    assert all(len(block) == 2000 for block in kept)
