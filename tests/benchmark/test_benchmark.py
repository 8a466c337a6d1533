"""Benchmark calculations: model costs, machine limits, GGUF export, reports."""

import contextlib
import json
import sys

import numpy as np
import pytest

from benchmark import ab_compare, model_driver, single_request
from benchmark.gguf_file import gguf_name, pack_q4_0
from benchmark.gguf_hybrid import convert_weight
from benchmark.make_checkpoint import (
    SHAPES,
    qwen3_config,
    shape_config,
    weight_shapes,
    write_checkpoint,
)
from benchmark.metrics import METRICS, Metric
from benchmark.model_costs import ModelCosts
from benchmark.peers_results import Results
from benchmark.peers_table import write_table
from benchmark.roofline import (
    Limits,
    Machine,
    Peaks,
)
from benchmark.single_request import sampled_offsets
from benchmark.systems.client import Ready
from tests.models.support import HYBRID, HYBRID_MIXTURE, MIXTURE
from tiny_llm import load_weights
from tiny_llm.models.families.registry import read_config

MACHINE = Machine("a processor", 2, 40.0, 500.0, 800.0, 0.0)
CONFIG = qwen3_config(*SHAPES["qwen3-0.6b"])
QUANTIZED = {**CONFIG, "quantization": {"bits": 4, "group_size": 128}}
COSTS = ModelCosts.from_config(QUANTIZED)


@pytest.mark.parametrize("shape", SHAPES)
def test_weight_bytes_match_the_checkpoint(shape):
    config = qwen3_config(*SHAPES[shape])
    costs = ModelCosts.from_config(config)
    matrices = {name: np.prod(s) for name, s in weight_shapes(config) if len(s) == 2}
    if not config["tie_word_embeddings"]:
        del matrices["model.embed_tokens.weight"]  # embedding rows are looked up, not multiplied
    assert costs.weight_bytes() == 2 * sum(matrices.values())


def test_step_costs():
    assert COSTS.weight_bits == 4.25
    assert COSTS.kv_bytes_per_token == 28 * 2 * 8 * 128 * 2
    single = COSTS.decode_bytes(1, 1000)
    assert COSTS.decode_bytes(4, 1000) - single == 3 * 1000 * COSTS.kv_bytes_per_token
    assert COSTS.decode_bytes(1, 0, weight_bits=16) == 16 / 4.25 * COSTS.decode_bytes(1, 0)
    assert COSTS.decode_flops(3, 128) == 3 * COSTS.decode_flops(1, 128)


def test_prefill_flops_sum_over_tokens_with_a_single_head():
    head = 2.0 * COSTS.head_weights
    one_by_one = sum(COSTS.decode_flops(1, position + 1) - head for position in range(64))
    assert COSTS.prefill_flops(64) == pytest.approx(one_by_one + head, rel=1e-12)


def test_roofline_is_the_slower_of_memory_and_arithmetic():
    assert MACHINE.seconds(40e9, 1.0) == 1.0
    assert MACHINE.seconds(1.0, 1600e9) == 2.0
    decode = Metric("", "", "decode", 128)
    assert decode.bound(COSTS, MACHINE) == 40e9 / COSTS.decode_bytes(1, 128)
    prefill = Metric("", "", "prefill", 512)
    assert prefill.bound(COSTS, MACHINE) == pytest.approx(512 * 800e9 / COSTS.prefill_flops(512))
    attention = COSTS.prefill_attention_flops(512)
    seconds = (COSTS.prefill_flops(512) - attention) / 400e9 + attention / 200e9
    bound = prefill.bound(COSTS, MACHINE, peaks=Peaks(400.0, 200.0))
    assert bound == pytest.approx(512 / seconds), (
        "the bound must use the matmul peak for matmuls and the attention peak for attention"
    )


def test_long_contexts_move_their_keys_and_values():
    decode = Metric("", "", "decode", 32768)
    n_bytes = COSTS.weight_bytes() + 32768 * COSTS.kv_bytes_per_token
    assert decode.bound(COSTS, MACHINE) == pytest.approx(40e9 / n_bytes)
    assert COSTS.prefill_bytes(32768) == n_bytes
    # 16 heads of size 128 in 28 layers: scores and weighted values of (32768 + 1) / 2 keys on
    # average.
    attention = 32768 * (32769 / 2) * 28 * 16 * 128 * 4
    assert COSTS.prefill_attention_flops(32768) == pytest.approx(attention, rel=1e-12)


def q4_0_block(weights: list[float]) -> bytes:
    """Reference encoding of one Q4_0 block, per the format's specification."""
    largest = max(weights, key=abs)
    d = largest / -8
    q = [min(15, int(weight / d + 8.5)) if d else 8 for weight in weights]
    return np.float16(d).tobytes() + bytes(q[i] | q[i + 16] << 4 for i in range(16))


def test_q4_0_packing_matches_the_specification():
    rows = np.random.default_rng(0).integers(-50, 50, (5, 96)).astype(np.float32) / 16
    rows[2, 32:64] = 0
    expected = [
        b"".join(q4_0_block(row[start : start + 32].tolist()) for start in (0, 32, 64))
        for row in rows
    ]
    assert [row.tobytes() for row in pack_q4_0(rows)] == expected


def test_every_weight_has_a_gguf_name():
    names = [gguf_name(name) for name, _ in weight_shapes({**CONFIG, "tie_word_embeddings": False})]
    assert len(set(names)) == len(names)
    assert "token_embd.weight" in names
    assert "blk.27.ffn_down.weight" in names
    experts = [gguf_name(name) for name, _ in weight_shapes(MIXTURE)]
    assert len(set(experts)) == len(experts)
    assert {"blk.0.ffn_gate_inp.weight", "blk.0.ffn_up_exps.weight"} <= set(experts)
    hybrid = [gguf_name(name, hybrid=True) for name, _ in weight_shapes(HYBRID)]
    assert len(set(hybrid)) == len(hybrid)
    assert {"blk.0.ssm_dt.bias", "blk.0.ssm_a", "blk.3.post_attention_norm.weight"} <= set(hybrid)


def test_value_heads_are_interleaved_by_key_head():
    """Two key heads with three value heads each; each value head has one row."""
    config = {**HYBRID, "linear_num_value_heads": 6}
    rows = np.arange(6, dtype=np.float32)
    assert convert_weight("blk.0.ssm_dt.bias", rows, config).tolist() == [0, 3, 1, 4, 2, 5]
    assert np.allclose(convert_weight("blk.0.ssm_a", rows, config)[:2], [-1, -np.exp(3)])


def test_expert_matrices_are_packed_row_by_row():
    experts = np.random.default_rng(0).normal(size=(3, 4, 64)).astype(np.float32)
    rows = [pack_q4_0(expert) for expert in experts]
    assert np.array_equal(pack_q4_0(experts), np.stack(rows))


@pytest.mark.parametrize("config", [MIXTURE, HYBRID, HYBRID_MIXTURE], ids=lambda c: c["model_type"])
def test_written_checkpoint_loads_for_every_family(tmp_path, config):
    write_checkpoint(tmp_path, config, bits=4, group_size=32)
    weights, _ = load_weights(str(tmp_path))
    assert weights.args == read_config(config)


@pytest.mark.parametrize(
    ("shape", "kv_bytes", "state_mib", "weights"),
    [("qwen3.5-0.8b", 12, 18.6, 0.75e9), ("qwen3.5-4b", 32, 49.1, 4.2e9)],
)
def test_costs_of_hybrid_shapes(shape, kv_bytes, state_mib, weights):
    costs = ModelCosts.from_config(shape_config(shape))
    assert costs.kv_bytes_per_token == kv_bytes * 1024
    assert costs.state_bytes / 2**20 == pytest.approx(state_mib, abs=0.05)
    assert costs.step_weights == pytest.approx(weights, rel=0.01)
    moved = costs.decode_bytes(4, 1000) - costs.decode_bytes(3, 1000)
    assert moved == 1000 * costs.kv_bytes_per_token + 2 * costs.state_bytes


def test_report_with_missing_measurements(tmp_path):
    decode, prefill = METRICS["decode-128"], METRICS["prefill-512"]
    results = Results("a shape", COSTS, ["tiny-llm", "llama.cpp", "mlx-lm"], [prefill, decode])
    for system, bits in (("tiny-llm", 4.25), ("llama.cpp", 4.5), ("mlx-lm", 4.25)):
        results.describe(system, Ready(1.0, 10**9, f"{system} 1.0", bits))
    results.machines.append(MACHINE)
    for seconds in (0.02, 0.01, 0.04):
        results.add("tiny-llm", decode, {"seconds": seconds})
    results.add("llama.cpp", decode, {"seconds": 0.03, "note": "flash attention on"})
    results.add("mlx-lm", decode, {"unsupported": "it would take hours."})
    results.add("mlx-lm", prefill, {"seconds": 900.0, "note": "8 tokens measured and scaled"})

    assert results.throughput("tiny-llm", decode) == (50.0, 100.0)
    assert results.ratio("llama.cpp", decode) == pytest.approx(1.5)
    assert results.ratio("mlx-lm", decode) is None
    own_format, checkpoint_format = (
        results.share("llama.cpp", decode, own_weights=True),
        results.share("llama.cpp", decode),
    )
    assert own_format > checkpoint_format
    summary = results.summary()
    assert summary["ratio_to"]["llama.cpp"] == {"decode-128": 1.5}
    assert "decode-128" not in summary["tokens_per_s"]["mlx-lm"]
    json.dumps(results.as_json())

    text = write_table(results, tmp_path / "peers.md")
    assert "| tiny-llm | – | 50 (100) |" in text
    assert "mlx-lm, decode: not measured: it would take hours" in text
    assert "0.569† (0.569)" in text


def machine_with_bandwidth(gb_per_s: float) -> Machine:
    return Machine("a processor", 2, gb_per_s, 500.0, 800.0, 0.0)


def test_utilization_uses_the_limits_around_each_round():
    decode = METRICS["decode-128"]
    results = Results("a shape", COSTS, ["tiny-llm"], [decode])
    bound_s = 1 / decode.bound(COSTS, machine_with_bandwidth(80.0))
    results.machines = [machine_with_bandwidth(value) for value in (40.0, 80.0, 20.0, 20.0)]
    for slowdown in (1.25, 2.0, 4.0):
        results.add("tiny-llm", decode, {"seconds": slowdown * bound_s})
    assert results.share_of_round_limits("tiny-llm", decode) == pytest.approx(0.8), (
        "expected 0.8, the median of 0.8, 0.5 and 1"
    )
    assert results.share("tiny-llm", decode) == pytest.approx(0.5), (
        "expected a share of the best round's limits"
    )
    assert results.share_of_round_limits("tiny-llm", METRICS["prefill-512"]) is None
    assert results.above_limits() == []
    results.machines = [machine_with_bandwidth(20.0)] * 4
    assert results.above_limits() == ["tiny-llm, decode 200 %"]


# All peaks are known: float32, bfloat16, AMX, 16-bit integers, 8-bit integers.
EVERY_PEAK = Machine("a processor", 2, 40.0, 100.0, 200.0, 1600.0, 300.0, 3200.0)
FAST = Machine("a processor faster than any", 2, 1e6, *[1e6] * 5)


@pytest.mark.parametrize(
    ("isa", "quantized", "matmuls", "attention"),
    [
        ("portable", True, 100, 100),
        ("neon", True, 300, 100),
        ("neon", False, 100, 100),
        ("avx2", True, 300, 100),
        ("avx2", False, 100, 100),
        ("avx512vnni", True, 300, 100),
        # 200 GFLOP/s for half of the operations, 100 for the other half.
        ("avx512", True, 200, 400 / 3),
        ("avx512", False, 200, 400 / 3),
        # 1,600 GFLOP/s for scores; two products per weighted value.
        ("amx", True, 1600, 3200 / 3),
        ("amx", False, 200, 3200 / 3),
        ("native", True, 1600, 1600),
    ],
)
def test_peaks_are_those_of_the_instructions_in_use(isa, quantized, matmuls, attention):
    peaks = EVERY_PEAK.kernel_peaks(isa, quantized)
    assert (peaks.matmuls, peaks.attention) == pytest.approx((matmuls, attention))
    assert EVERY_PEAK.highest_peaks == Peaks(3200.0, 3200.0)


class FakeWorker:
    """Worker with scripted timings that records the order of calls."""

    def __init__(self, name: str, seconds: list[float], calls: list[str]):
        self._name = name
        self._seconds = iter(seconds)
        self._calls = calls

    def run(self, request, limit_s):
        assert request == {"kind": "decode", "tokens": 128, "batch": 1}
        self._calls.append(self._name)
        return {"seconds": next(self._seconds)}


def test_ab_comparison_alternates_its_workers(capsys):
    calls = []
    workers = {
        "other": FakeWorker("other", [9, 2.0, 4.0, 8.0], calls),
        "this": FakeWorker("this", [9, 1.0, 4.0, 6.0], calls),
    }
    metric = METRICS["decode-128"]
    seconds = ab_compare.run_interleaved(workers, metric, rounds=3, limit_s=1)
    assert seconds == {"other": [2.0, 4.0, 8.0], "this": [1.0, 4.0, 6.0]}, (
        "expected the times of all runs except the warm-up"
    )
    assert calls == ["other", "this", "this", "other"] * 2
    assert ab_compare.report(metric, seconds)["ratio"] == 0.75, (
        "expected 0.75, the median of 0.5, 1 and 0.75"
    )
    line = "| decode | 4000.00 | 2000.00 | 4000.00 | 1000.00 | 0.750 |"
    assert capsys.readouterr().out.strip() == line


@pytest.mark.parametrize("tokens", [4096, 16384, 32768])
def test_sampled_chunks_stand_for_a_prompt(tokens):
    """If costs are affine, the sampled chunks have the mean cost of all chunks."""
    cost = [7.0 + 3.0 * offset for offset in range(0, tokens, 1024)]
    sampled = [cost[offset // 1024] for offset in sampled_offsets(tokens)]
    assert len(set(sampled)) == 4
    assert sum(sampled) * len(cost) / 4 == sum(cost)


def test_long_prompts_and_contexts(tmp_path, monkeypatch, capsys, on_cpu):
    config = qwen3_config(32, 1, 64, 2, 1, True, head_dim=16, vocab_size=512)
    write_checkpoint(tmp_path, config, bits=4, group_size=32)
    fixed = contextlib.nullcontext(Limits(lambda: FAST, "avx2"))
    monkeypatch.setattr(model_driver, "measured_limits", lambda: fixed)
    monkeypatch.setattr(single_request, "LONG", (4096, 8192))
    arguments = ["--long", "--repeats=1", "--steps=2", f"--model={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["single_request", *arguments])
    assert single_request.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines if line.startswith(("| p", "| d"))] == [
        "| prefill 4,096, 4 of 4 chunks",
        "| prefill 8,192, 4 of 8 chunks",
        "| decode at 4,096",
        "| decode at 8,192",
    ]
    rows = json.loads(lines[-1])["rows"]
    costs = ModelCosts.from_folder(tmp_path)
    for row in rows:
        bound = Metric("", "", row["metric"], row["tokens"]).bound(
            costs, FAST, peaks=FAST.kernel_peaks("avx2")
        )
        assert row["roofline_tokens_per_s"] == bound
