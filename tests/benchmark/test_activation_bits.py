"""The benchmark of 8-bit activations, on the demo model."""

import json
import sys

import pytest

from benchmark import activation_bits
from tiny_llm import kernels


@pytest.mark.skipif(kernels.prepack_rows() == 0, reason="needs kernels that round activations")
def test_reports_speed_and_error(monkeypatch, capsys, tmp_path):
    text = tmp_path / "text"
    text.write_text("The capital of Japan is Tokyo. " * 20)
    monkeypatch.setattr(activation_bits, "BATCH_SIZES", (2,))
    monkeypatch.setattr(sys, "argv", ["", "--text", str(text), "--rounds", "1"])
    assert activation_bits.main() == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["speeds"].keys() == {"prefill", "decode 2"}
    assert all(speed > 0 for pair in result["speeds"].values() for [speed] in pair)
    assert result["error"]["tokens"] > 100
    assert 0.9 < result["error"]["agreement"] <= 1
    assert result["error"]["perplexity_ratio"] == pytest.approx(1, abs=0.02)
    assert result["error"]["perplexity_ratio"] != 1


def test_unsupported_kernels_are_reported(monkeypatch, capsys):
    monkeypatch.setenv("TINY_LLM_CPU_ISA", "portable")
    monkeypatch.setattr(sys, "argv", [""])
    assert activation_bits.main() == 2
    assert "requires a CPU that the extension's vector kernels support" in capsys.readouterr().err
