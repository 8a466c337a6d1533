"""The machine's memory, and releasing freed memory to the operating system."""

import ctypes

import pytest

from tests.support import resident_bytes
from tiny_llm.models import memory
from tiny_llm.models.memory import available_memory, is_memory_short, total_memory, trim_heap


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc's malloc_trim"
)
def test_fragmented_heap_is_released():
    blocks = [bytes(2000) for _ in range(20_000)]  # 40 MB
    kept = blocks[::64]  # scattered blocks, so that the heap cannot shrink from its top
    del blocks
    before = resident_bytes()
    trim_heap()
    assert before - resident_bytes() > 20e6
    assert all(len(block) == 2000 for block in kept)


@pytest.mark.parametrize(
    ("lines", "files", "expected"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "4096\n"}, 4096),
        ("0::/a\n", {"a/memory.max": "8192", "memory.max": "max"}, 8192),
        ("4:memory:/host\n", {"memory/memory.limit_in_bytes": "2048"}, 2048),
        ("3:cpu:/a\n", {"cpu/memory.max": "1"}, None),
    ],
)
def test_memory_is_limited_by_control_groups(tmp_path, lines, files, expected):
    write_system(tmp_path, lines, files)
    assert total_memory(tmp_path) == (expected or total_memory(tmp_path / "nothing"))


def write_system(root, cgroup, files, available=None, stall=None):
    """Writes files of /proc and /sys; `available` in bytes, `stall` in percent."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/pressure").mkdir()
    (root / "proc/self/cgroup").write_text(cgroup)
    if available is not None:
        meminfo = f"MemTotal:       25276063 kB\nMemAvailable:   {available // 1024} kB\n"
        (root / "proc/meminfo").write_text(meminfo)
    if stall is not None:
        (root / "proc/pressure/memory").write_text(pressure(stall))
    for name, content in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


def pressure(percent):
    return f"some avg10={percent:.2f} avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 total=1\n"


LIMITED = {
    "a/memory.max": str(2**30),
    "a/memory.current": str(900 * 2**20),
    "a/memory.stat": f"anon 1\ninactive_file {100 * 2**20}\nactive_file {50 * 2**20}\n",
    "memory.max": "max",
}
LIMITED_V1 = {
    "memory/a/memory.limit_in_bytes": str(2**30),
    "memory/a/memory.usage_in_bytes": str(900 * 2**20),
    "memory/a/memory.stat": f"inactive_file 1\ntotal_inactive_file {100 * 2**20}\n",
}


@pytest.mark.parametrize(
    ("cgroup", "files", "available", "expected"),
    [
        ("0::/a\n", {}, None, 2**80),
        ("0::/a\n", {}, 2**28, 2**28),
        ("0::/a\n", LIMITED, 2**40, (1024 - 900 + 150) * 2**20),
        ("0::/a\n", LIMITED, 2**26, 2**26),
        ("4:memory:/a\n", LIMITED_V1, 2**40, (1024 - 900 + 100) * 2**20),
    ],
)
def test_available_memory(tmp_path, monkeypatch, cgroup, files, available, expected):
    monkeypatch.setattr(memory.sys, "platform", "linux")
    write_system(tmp_path, cgroup, files, available)
    assert available_memory(tmp_path) == min(expected, total_memory(tmp_path))


@pytest.mark.parametrize(
    ("left", "stall", "group_stall", "expected"),
    [
        (2**30 // 2, 90, 90, False),  # the memory pressure is in another control group
        (2**30 // 5, 0, 0, False),
        (2**30 // 5, 12, 0, True),
        (2**30 // 5, 0, 12, True),
        (2**30 // 17, 0, 0, True),
    ],
)
def test_memory_pressure_on_linux(tmp_path, monkeypatch, left, stall, group_stall, expected):
    monkeypatch.setattr(memory.sys, "platform", "linux")
    numbers = {"max": 2**30, "stat": "", "current": 2**30 - left, "pressure": pressure(group_stall)}
    files = {f"a/memory.{name}": str(number) for name, number in numbers.items()}
    write_system(tmp_path, "0::/a\n", files, 2**40, stall)
    assert is_memory_short(tmp_path) is expected


@pytest.mark.parametrize(("level", "expected"), [(1, False), (2, True), (4, True)])
def test_memory_pressure_on_macos(monkeypatch, level, expected):
    values = {"kern.memorystatus_vm_pressure_level": level, "kern.memorystatus_level": 25}
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    monkeypatch.setattr(memory, "_sysctl", lambda name, default: values[name])
    assert is_memory_short() is expected
    monkeypatch.setattr(memory, "total_memory", lambda root: 2**30)
    assert available_memory() <= 2**28


def test_unknown_sysctl_has_a_default():
    assert memory._sysctl("kern.no_such_value", 7) == 7
