"""`pdm run speed`: measurements, output, history. Asserts no duration."""

import json
import os
import re

import mlx.core as mx
import pytest

from benchmark.roofline import Machine
from tests.support import assert_close, use_device
from tests.week_4.kernel_selection import SIMD_ISAS
from tiny_llm.kernels.roofline import HardwareLimits
from tools.course import history
from tools.speed import __main__ as speed
from tools.speed import attention, decode_steps, fused_ops, matmuls

MACHINE = Machine("a processor", 2, 40.0, 500.0, 800.0, 6000.0)
ROW = {"median": 0.003, "minimum": 0.002, "megabytes": 20.0, "gigaflop": 0.1}
ROW |= {"least": 0.0005, "share": 0.25}


@pytest.fixture
def measured(monkeypatch):
    """Replaces the benchmark process with fixed output."""
    requested = []

    def measure_in_subprocess(what, whose, machine, rounds, *options):
        requested.append((what, whose, *options))
        if what == "slowed":
            slow = {**ROW, "minimum": 0.008, "share": 0.0625}
            rows = {name: slow if name in options else ROW for name in matmuls.MATMULS}
            return {"rows": rows, "slowest": "head"}
        if what == "best":
            return {"rows": {"best": {**ROW, "minimum": 0.0005, "share": 1.0}}}
        vectors = {**ROW, "minimum": 0.001, "share": 0.5}
        rows = {"loops": ROW, "vectors": vectors}
        return {"rows": rows, "unwritten": {"factored": "is yours"}, "prefetch_distance": 1024}

    monkeypatch.setattr(speed, "measure_in_subprocess", measure_in_subprocess)
    monkeypatch.setattr(speed, "measure_best", lambda rounds: MACHINE)
    return requested


def test_kernel_grades_are_stored(tree, measured, capsys):
    assert speed.main(["--day", "4.2"]) == 0
    output = capsys.readouterr().out
    assert "your score: 50.0 % of the limit, by vectors" in output
    assert "factored: is yours" in output
    (line,) = [line for line in output.splitlines() if "│ vectors" in line]
    cells = ["3.00", "1.00", "20.00", "100", "50.0 %", "2.0"]
    assert [cell.strip() for cell in line.split("│")[2:8]] == cells
    assert "best_prefetch_distance() of your roofline.py returns 1024 bytes" in output
    assert measured == [("kernels", tree, "--day", "4.2"), ("best", None, "--day", "4.2")]
    (kept,) = history.entries(tree, "speed")
    assert kept["shares"] == {"loops": 0.25, "vectors": 0.5}


@pytest.fixture
def small(monkeypatch):
    """Replaces the measured matmuls with tiny ones; returns hardware limits."""
    monkeypatch.setattr(matmuls, "MATMULS", {"o": (64, 128, 2), "down": (32, 256, 1)})
    monkeypatch.setattr(matmuls, "COMPARED_MATMUL", ("o", 2))
    with use_device("cpu"):
        yield HardwareLimits(1e9, 1e9)


def test_kernels_are_measured_by_name(small, monkeypatch):
    monkeypatch.delenv(matmuls.VARIABLE, raising=False)
    monkeypatch.setenv("TINY_LLM_CPU_ISA", "portable")
    found = matmuls.measure_kernels(matmuls.DAY_KERNELS["all"], small, rounds=1)
    assert set(found["rows"]) == {"loops", "factored"}
    assert "requires a vector instruction set" in found["unwritten"]["vectors"]
    assert matmuls.VARIABLE not in matmuls.os.environ
    assert set(matmuls.measure_kernels((None,), small, rounds=1)["rows"]) == {"best"}
    assert mx.default_device() == mx.Device(mx.cpu)


@pytest.mark.parametrize("day", [day for day in matmuls.DAY_KERNELS if day > "4.2"])
def test_every_kernel_of_a_day_is_measured(small, day):
    if not SIMD_ISAS:
        pytest.skip("needs AVX2, AVX-512 or NEON")
    found = matmuls.measure_kernels(matmuls.DAY_KERNELS[day], small, 1, day)
    assert not found["unwritten"]
    assert {name.split()[0] for name in found["rows"]} == set(matmuls.DAY_KERNELS[day])
    if day in matmuls.ROWS_BY_DAY:
        assert found["rows"]["prefetched"]["gigaflop"] == 64 * 2 * 2 * 64 * 128 / 1e9
    else:
        assert found["prefetch_distance"] in matmuls.PREFETCH_DISTANCES
        assert f"prefetched {matmuls.PREFETCH_DISTANCES[0]}" in found["rows"]
    assert matmuls.PREFETCH_VARIABLE not in matmuls.os.environ


def test_attention_is_measured_by_name(monkeypatch):
    monkeypatch.setenv("TINY_LLM_CPU_ISA", "portable")
    monkeypatch.delenv(attention.VARIABLE, raising=False)
    monkeypatch.setattr(attention, "HEADS", (4, 2, 8, 33, 2))
    monkeypatch.setattr(attention, "ONE_HEAD", (2, 1, 8, 33, 1))
    with use_device("cpu"):
        found = attention.measure(HardwareLimits(1e9, 1e9), 1, best=False)
        best = attention.measure(HardwareLimits(1e9, 1e9), 1, best=True)
    json.dumps(found)
    assert set(found["rows"]) == {"loops"}
    assert "requires a vector instruction set" in found["unwritten"]["split"]
    assert found["rows"]["loops"]["gigaflop"] == pytest.approx(2 * 4 * 4 * 33 * 8 / 1e9)
    assert set(best["rows"]) == set(best["one_head"]) == {"best"}
    assert attention.VARIABLE not in os.environ


@pytest.fixture
def few_tokens(monkeypatch):
    """Reduces day 4.5's operations to a few tokens; returns hardware limits."""
    monkeypatch.setattr(fused_ops, "TOKENS", 5)
    monkeypatch.setattr(fused_ops, "FEW_TOKENS", 3)
    with use_device("cpu"):
        yield HardwareLimits(1e9, 1e9)


def test_memory_access_patterns_are_measured(few_tokens):
    operations = fused_ops.FusedOps(5)
    for fused, layer in zip(operations.fused(), operations.layers(), strict=False):
        assert_close(fused, layer, "fused operation against Week 1's layer", ulps=4)
    found = fused_ops.measure(few_tokens, rounds=1, best=False)
    json.dumps(found)
    assert set(found["rows"]) == {"layers", "loops", "vectors", "dynamic"}
    assert not found["unwritten"]
    assert "3 tokens: median" in found["remarks"][0]
    assert fused_ops.VARIABLE not in matmuls.os.environ
    assert set(fused_ops.measure(few_tokens, rounds=1, best=True)["rows"]) == {"best"}


def test_captured_steps_are_measured(monkeypatch):
    monkeypatch.setattr(decode_steps, "CHAIN", (1, 4))
    monkeypatch.setattr(decode_steps, "STEPS", 1)
    with use_device("cpu"):
        found = decode_steps.measure(HardwareLimits(1e9, 1e9), rounds=1, best=False)
    json.dumps(found)
    assert set(found["rows"]) == {"nodes", "captured"}
    assert not found["unwritten"]
    nodes, node, share, product = found["remarks"]
    assert re.match(r"matmuls by your kernel (panels|factored)", product)
    assert nodes == "nodes of a step's graph: 154 nodes, 11 captured"
    assert "µs a node" in node
    assert "of the time; it took" in share
