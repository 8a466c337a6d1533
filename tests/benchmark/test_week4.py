"""Kernels of each day of Week 4, selected by environment variables."""

import json
import sys

import mlx.core as mx
import pytest

from benchmark import week4
from benchmark.metrics import METRICS
from benchmark.timing import Times
from tiny_llm import kernels
from tiny_llm.demo import TARGET_PATH


@pytest.mark.parametrize("day", week4.DAYS, ids=lambda day: day.name)
def test_day_variables_name_existing_kernels(monkeypatch, day):
    monkeypatch.setenv("TINY_LLM_MATMUL", "loops")  # simulates a user's setting
    environment = day.environment
    assert environment["PATH"]
    assert environment.get("TINY_LLM_MATMUL", "") == day.matmul
    monkeypatch.delenv("TINY_LLM_MATMUL")
    for name in week4.VARIABLES & environment.keys():
        monkeypatch.setenv(name, environment[name])
    x = mx.ones((1, 2, 3, 16), dtype=mx.bfloat16)
    mx.eval(kernels.flash_attention(x, x, x), kernels.rms_norm(x, x[0, 0, 0], 1e-6))


def test_table_has_a_row_per_day(monkeypatch, capsys):
    monkeypatch.setattr(week4, "DAYS", [week4.DAYS[3], week4.DAYS[-1]])
    chosen = ["--model", str(TARGET_PATH), "--metrics", "decode-128", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["week4", *chosen])
    assert week4.main() == 0
    *table, last = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in table[2:]] == [day.name for day in week4.DAYS]
    assert all(value > 0 for value in json.loads(last)["seconds"]["decode-128"].values())


def test_timeout_is_reported_as_a_bound():
    prompt = METRICS["prefill-512"]
    assert week4.cell(prompt, None, 64) == "< 8.0"
    assert week4.cell(prompt, Times.of([0.25, 0.5, 0.125]), 64) == "2,048"
    assert week4.cell(METRICS["decode-128-batch-4"], Times.of([0.1]), 64) == "40.0"
