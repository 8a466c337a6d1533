"""Benchmark calculations: model costs, machine limits, GGUF export, reports."""

import argparse
import contextlib
import importlib
import json
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from benchmark import ab_compare, command, model_driver, ops, peers, single_request
from benchmark.gguf_file import gguf_name, pack_q4_0, plain_weights
from benchmark.gguf_hybrid import convert_weight
from benchmark.make_checkpoint import (
    SHAPES,
    qwen3_config,
    shape_config,
    weight_shapes,
    write_checkpoint,
)
from benchmark.metrics import METRICS, Metric, throughput
from benchmark.model_costs import ModelCosts
from benchmark.peers_results import Results
from benchmark.peers_table import write_table
from benchmark.roofline import (
    ISA_FLAGS,
    PROBE,
    Limits,
    Machine,
    Peaks,
    ProbeError,
    best,
    isa_of_kernels,
)
from benchmark.single_request import sampled_offsets
from benchmark.systems import llama_cpp_worker
from benchmark.systems.client import Ready, WorkerError
from benchmark.timing import Times
from tests.models.gguf.support import write_model
from tests.models.support import HYBRID, HYBRID_MIXTURE, MIXTURE
from tiny_llm import UserError, kernels, load_weights
from tiny_llm.demo import TARGET_PATH
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
    head = 2.0 * COSTS.head_weights  # multiplied once per prompt
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
    bound = prefill.bound(COSTS, MACHINE, peaks=Peaks(matmuls=400.0, attention=200.0))
    assert bound == pytest.approx(512 / seconds)


def test_long_contexts_move_their_keys_and_values():
    decode = Metric("", "", "decode", 32768)
    n_bytes = COSTS.weight_bytes() + 32768 * COSTS.kv_bytes_per_token
    assert decode.bound(COSTS, MACHINE) == pytest.approx(40e9 / n_bytes)
    assert COSTS.prefill_bytes(32768) == n_bytes
    # 16 heads of size 128 in 28 layers: scores and weighted values of (32768 + 1) / 2 keys on
    # average.
    attention = 32768 * (32769 / 2) * 28 * 16 * 128 * 4
    assert COSTS.prefill_attention_flops(32768) == pytest.approx(attention, rel=1e-12)


def test_machine_limits_are_the_best_measurements():
    other = Machine("a processor", 2, 30.0, 600.0, 700.0, 0.0)
    assert best([MACHINE, other]) == Machine("a processor", 2, 40.0, 600.0, 800.0, 0.0)
    assert best([]) is None
    avx2 = Machine("a processor", 2, 40.0, 200.0, 0.0, 0.0, 300.0)
    assert avx2.peak_gflop_per_s == 300.0
    assert "float32 200, 16-bit integer dot 300" in str(avx2)


def q4_0_block(weights: list[float]) -> bytes:
    """Reference encoding of one Q4_0 block, per the format's specification."""
    d = max(weights, key=abs) / -8
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
    experts = rows[:4].reshape(2, 2, 96)
    assert np.array_equal(pack_q4_0(experts), np.stack([pack_q4_0(expert) for expert in experts]))


@pytest.mark.parametrize(
    ("config", "some"),
    [
        ({**CONFIG, "tie_word_embeddings": False}, {"token_embd.weight", "blk.27.ffn_down.weight"}),
        (MIXTURE, {"blk.0.ffn_gate_inp.weight", "blk.0.ffn_up_exps.weight"}),
        (HYBRID, {"blk.0.ssm_dt.bias", "blk.0.ssm_a", "blk.3.post_attention_norm.weight"}),
    ],
    ids=["dense", "mixture", "hybrid"],
)
def test_every_weight_has_a_gguf_name(config, some):
    names = [gguf_name(name, hybrid=config is HYBRID) for name, _ in weight_shapes(config)]
    assert len(set(names)) == len(names)
    assert some <= set(names)


def test_value_heads_are_interleaved_by_key_head():
    """Two key heads with three value heads each; each value head has one row."""
    config = {**HYBRID, "linear_num_value_heads": 6}
    rows = np.arange(6, dtype=np.float32)
    assert convert_weight("blk.0.ssm_dt.bias", rows, config).tolist() == [0, 3, 1, 4, 2, 5]
    assert np.allclose(convert_weight("blk.0.ssm_a", rows, config)[:2], [-1, -np.exp(3)])


@pytest.mark.parametrize("config", [MIXTURE, HYBRID, HYBRID_MIXTURE], ids=lambda c: c["model_type"])
def test_written_checkpoint_loads_for_every_family(tmp_path, config):
    write_checkpoint(tmp_path, config, bits=4, group_size=32)
    weights, _ = load_weights(str(tmp_path))
    assert weights.args == read_config(config)


def test_demo_model_weights_are_dequantized():
    shapes = dict(weight_shapes(json.loads((TARGET_PATH / "config.json").read_text())))
    assert {name: weight.shape for name, weight in plain_weights(TARGET_PATH)} == shapes


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
    own_format = results.share("llama.cpp", decode, own_weights=True)
    assert own_format > results.share("llama.cpp", decode)
    summary = results.summary()
    assert summary["ratio_to"]["llama.cpp"] == {"decode-128": 1.5}
    assert "decode-128" not in summary["tokens_per_s"]["mlx-lm"]
    json.dumps(results.as_json())

    text = write_table(results, tmp_path / "peers.md")
    assert "| tiny-llm | – | 50 (100) |" in text
    assert "mlx-lm, decode: not measured: it would take hours" in text
    assert "0.569† (0.569)" in text


def machine_with_bandwidth(gb_per_s: float) -> Machine:
    return replace(MACHINE, read_gb_per_s=gb_per_s)


def test_utilization_uses_the_limits_around_each_round():
    decode = METRICS["decode-128"]
    results = Results("a shape", COSTS, ["tiny-llm"], [decode])
    bound_s = 1 / decode.bound(COSTS, machine_with_bandwidth(80.0))
    results.machines = [machine_with_bandwidth(value) for value in (40.0, 80.0, 20.0, 20.0)]
    for slowdown in (1.25, 2.0, 4.0):
        results.add("tiny-llm", decode, {"seconds": slowdown * bound_s})
    # The median of 0.8, 0.5 and 1, and a share of the best round's limits.
    assert results.share_of_round_limits("tiny-llm", decode) == pytest.approx(0.8)
    assert results.share("tiny-llm", decode) == pytest.approx(0.5)
    assert results.share_of_round_limits("tiny-llm", METRICS["prefill-512"]) is None
    assert results.above_limits() == []
    results.machines = [machine_with_bandwidth(20.0)] * 4
    assert results.above_limits() == ["tiny-llm, decode 200 %"]


def test_limits_of_a_block_are_the_higher_of_those_before_and_after(capsys):
    probes = map(machine_with_bandwidth, (40.0, 80.0, 20.0, 10.0))
    limits = Limits(lambda: next(probes))
    for bandwidth in (80.0, 80.0, 20.0):  # of those around the block, not of the run
        assert limits.around(lambda: "block") == ("block", machine_with_bandwidth(bandwidth))
    assert limits.share("decode", 3.0, 4.0) == "75 %"
    assert limits.exit_status() == 0
    assert limits.share("prefill", 5.0, 4.0) == "125 %"
    assert limits.exit_status() == 1
    assert "above the machine's limits: prefill 125 %. " in capsys.readouterr().err


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
    if isa in ("avx2", "avx512", "amx"):  # an unmeasured peak is replaced by the highest
        other = Machine("a processor", 2, 40.0, 100.0, 0.0, 0.0)
        assert other.kernel_peaks(isa) == Peaks(100.0, 100.0)


def test_shares_are_relative_to_the_kernels_peaks():
    limits = Limits(lambda: EVERY_PEAK, "avx2")
    metric = Metric("", "prefill", "prefill", 512)
    bound = metric.bound(COSTS, EVERY_PEAK, peaks=Peaks(300.0, 100.0))
    times = Times(512 / (0.5 * bound), 512 / bound)
    row, share = throughput(metric, times, COSTS, EVERY_PEAK, limits)
    assert row["roofline_tokens_per_s"] == bound
    assert share == "50 %"
    dense = ModelCosts.from_config(CONFIG)
    row, _ = throughput(metric, times, dense, EVERY_PEAK, limits)
    bound = metric.bound(dense, EVERY_PEAK, peaks=Peaks(100.0, 100.0))
    assert row["roofline_tokens_per_s"] == bound


@pytest.mark.parametrize(
    ("name", "isa", "peak"),
    [
        ("quantized_matmul", "avx2", 300),
        ("matmul", "avx2", 100),
        ("grouped_quantized_matmul", "amx", 1600),
        ("paged_attention", "avx512", 400 / 3),
        ("rms_norm", "avx512", 100),
    ],
)
def test_peaks_of_operations(name, isa, peak):
    assert ops.kernel_peak(name, EVERY_PEAK, isa) == pytest.approx(peak)


@pytest.mark.parametrize("exact", [None, []], ids=["exact", "8-bit activations"])
def test_limits_are_those_of_the_dot_products_in_use(exact):
    """Other systems may use 8-bit dot products, and so may tiny-llm's inexact kernels."""
    prefill, options = METRICS["prefill-512"], {} if exact is None else {"exact": exact}
    systems = ["tiny-llm", "llama.cpp"]
    results = Results("a shape", COSTS, systems, [prefill], "avx512", **options)
    results.machines = [EVERY_PEAK] * 2
    bound = prefill.bound(COSTS, EVERY_PEAK, peaks=EVERY_PEAK.kernel_peaks("avx512"))
    for system in systems:
        results.describe(system, Ready(1.0, 10**9, system, 4.25))
        results.add(system, prefill, {"seconds": 512 / (2 * bound)})
    assert results.share("llama.cpp", prefill) < 0.2
    above = [] if options else ["tiny-llm, prefill 512 200 %"]
    assert results.above_limits() == above


def peers_arguments(monkeypatch, work: Path, *flags: str) -> None:
    """Sets a command line of `peers` that measures tiny-llm alone."""
    systems = ["--systems", "tiny-llm", "--metrics", "decode-128", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["peers", "--work", str(work), *systems, *flags])


@pytest.fixture
def _no_probe(monkeypatch):
    monkeypatch.setattr(command, "exit_on_sigterm", lambda: None)
    monkeypatch.setattr(peers, "build_probe", Mock(side_effect=ProbeError("no probe")))


@pytest.mark.skipif(kernels.prepack_rows() == 0, reason="needs kernels that round activations")
@pytest.mark.usefixtures("_no_probe")
def test_peers_runs_the_engine_with_8_bit_activations(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(peers.Checkpoints, "mlx", lambda self, *args: TARGET_PATH)
    peers_arguments(monkeypatch, tmp_path, "--systems", "tiny-llm,tiny-llm-8bit")
    assert peers.main() == 0
    output = capsys.readouterr().out.splitlines()
    assert any("tiny-llm-8bit: engine," in line and "8-bit activations" in line for line in output)
    summary = json.loads(output[-1])
    assert min(each["decode-128"] for each in summary["tokens_per_s"].values()) > 0


@pytest.mark.usefixtures("_no_probe")
def test_peers_on_a_gguf_file(monkeypatch, capsys, tmp_path):
    pytest.importorskip("torch")  # not among the installed packages: `pdm run install-torch`
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=211, num_hidden_layers=2, **sizes)
    file = write_model(tmp_path / "tiny.gguf", transformers.LlamaForCausalLM(config))
    peers_arguments(monkeypatch, tmp_path, "--gguf", str(file))
    assert peers.main() == 0
    output = capsys.readouterr().out.splitlines()
    assert output[0] == "# tiny"
    assert json.loads(output[-1])["tokens_per_s"]["tiny-llm"]["decode-128"] > 0
    peers_arguments(monkeypatch, tmp_path, "--gguf", str(file), "--systems", "mlx-lm")
    assert peers.main() == 2
    assert "mlx-lm does not run GGUF files" in capsys.readouterr().err
    peers_arguments(monkeypatch, tmp_path, "--systems", "ik_llama.cpp")
    assert peers.main() == 2
    assert "--ik-llama-bench" in capsys.readouterr().err


def test_limits_are_those_of_the_forced_instruction_set(monkeypatch):
    sets = kernels.extension().instruction_sets()
    for isa in sets:
        monkeypatch.setenv("TINY_LLM_CPU_ISA", isa)
        assert isa_of_kernels() == isa
    monkeypatch.setenv("TINY_LLM_CPU_ISA", "sse9")
    with pytest.raises(UserError, match="TINY_LLM_CPU_ISA must be one of"):
        isa_of_kernels()


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="checks for x86 instructions")
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    ("flags", "function", "instruction", "sums"),
    [
        (["-mavx2", "-mfma"], "f32_fma", "vfmadd", 12),
        (["-mavx2", "-mfma"], "int16_dot", "vpmaddwd", 12),
        (["-mavx2", "-mfma", "-mavxvnni"], "int16_dot", "vpdpwssd", 12),
        (["-mavx2", "-mfma"], "int8_dot", "vpmaddubsw", 12),
        (["-mavx2", "-mfma", "-mavxvnni"], "int8_dot", "vpdpbusd", 12),
        (["-mavx512f", "-mavx512vnni"], "int16_dot", "vpdpwssd", 24),
        (["-mavx512f", "-mavx512vnni"], "int8_dot", "vpdpbusd", 24),
        (["-mavx2", "-mamx-tile", "-mamx-int8"], "amx_int8", "tdpbsud", 4),
        (
            ["-march=native", *ISA_FLAGS["avx2"][1:]],
            "int16_dot",
            r"vp(?:maddwd|dpwssd)\s.*%ymm",
            12,
        ),
        (["-mavx512f", "-mavx512bf16"], "bf16_dot", "vdpbf16ps", 24),
    ],
)
def test_probe_executes_the_operations_it_counts(flags, function, instruction, sums):
    """A compiler may merge equal sums, which would overstate the peak."""
    command = ["c++", "-std=c++20", "-O3", "-ffp-contract=fast", *flags, "-S", "-o", "-", PROBE]
    assembly = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    bodies = re.findall(rf"^\S*{function}\S*:\n(.*?)\n\s+ret\b", assembly, re.DOTALL | re.MULTILINE)
    counts = [len(re.findall(instruction, body)) for body in bodies]
    assert max(counts, default=0) >= sums, "the compiler merged the sums"


def test_ab_comparison_alternates_its_workers():
    calls = []

    def worker(name: str, *seconds: float) -> SimpleNamespace:
        remaining = iter(seconds)

        def run(request, limit_s):
            assert request == {"kind": "decode", "tokens": 128, "batch": 1}
            calls.append(name)
            return {"seconds": next(remaining)}

        return SimpleNamespace(run=run)

    workers = {
        "other": worker("other", 9, 2.0, 4.0, 8.0),
        "this": worker("this", 9, 1.0, 4.0, 6.0),
    }
    metric = METRICS["decode-128"]
    seconds = ab_compare.run_interleaved(workers, metric, rounds=3, limit_s=1)
    assert seconds == {"other": [2.0, 4.0, 8.0], "this": [1.0, 4.0, 6.0]}, "expected no warm-up"
    assert calls == ["other", "this", "this", "other"] * 2
    # The median of 0.5, 1 and 0.75.
    assert ab_compare.report(metric, seconds)["ratio"] == 0.75


def test_checkout_without_a_virtual_environment_is_rejected(tmp_path):
    with pytest.raises(SystemExit, match="has no .venv/bin/python; install tiny-llm there first"):
        ab_compare.venv_python(tmp_path)


@pytest.mark.parametrize("tokens", [4096, 16384, 32768])
def test_sampled_chunks_stand_for_a_prompt(tokens):
    """If costs are affine, the sampled chunks have the mean cost of all chunks."""
    cost = [7.0 + 3.0 * offset for offset in range(0, tokens, 1024)]
    sampled = [cost[offset // 1024] for offset in sampled_offsets(tokens)]
    assert len(set(sampled)) == 4
    assert sum(sampled) * len(cost) / 4 == sum(cost)


@pytest.mark.slow
@pytest.mark.parametrize("benchmark", ["single_request", "batch"])
def test_benchmarks_of_a_model_fail_above_its_limits(monkeypatch, capsys, on_cpu, benchmark):
    """The exit status is 1 if results exceed the limits, and 2 for a user error."""
    module = importlib.import_module(f"benchmark.{benchmark}")
    flags = ["--max-batch=1"]
    if benchmark == "single_request":
        flags = ["--max-prefill=128", "--max-context=200", "--repeats=1"]
    slow = Machine("a slow processor", 2, 1e-3, *[1e-3] * 5)
    for machine, status in ((slow, 1), (FAST, 0)):
        fixed = contextlib.nullcontext(Limits(lambda machine=machine: machine, "avx2"))
        monkeypatch.setattr(model_driver, "measured_limits", lambda fixed=fixed: fixed)
        monkeypatch.setattr(sys, "argv", [benchmark, *flags, "--steps=3"])
        assert module.main() == status
        output = capsys.readouterr()
        assert json.loads(output.out.splitlines()[-1])["model"] == "demo"
        assert ("above the machine's limits: " in output.err) == (status == 1)
    monkeypatch.setattr(sys, "argv", [benchmark, "--model=/nowhere"])
    assert module.main() == 2
    assert capsys.readouterr().err.startswith(f"{benchmark}: ")


@pytest.mark.parametrize("error", [UserError("no model."), WorkerError("openvino exited: 1")])
def test_errors_of_the_user_and_of_workers_are_one_line(monkeypatch, capsys, error):
    monkeypatch.setattr(command, "exit_on_sigterm", lambda: None)
    run = Mock(side_effect=error)
    assert command.run_command("fairness", argparse.Namespace(), run) == 2
    assert capsys.readouterr() == ("", f"fairness: {error}\n")


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
    costs, peaks = ModelCosts.from_folder(tmp_path), FAST.kernel_peaks("avx2")
    for row in json.loads(lines[-1])["rows"]:
        bound = Metric("", "", row["metric"], row["tokens"]).bound(costs, FAST, peaks=peaks)
        assert row["roofline_tokens_per_s"] == bound


def test_embeddings_do_not_share_a_context_with_text(monkeypatch):
    monkeypatch.setattr(llama_cpp_worker, "Context", lambda model, threads, *key: key)
    worker = object.__new__(llama_cpp_worker.LlamaCpp)
    worker._model, worker._threads, worker._contexts = None, 1, {}
    setting = llama_cpp_worker.Setting(flash=True, unified=False)
    assert worker._context(setting, 1, 512) == (setting, 1, 512, False)
    assert worker._context(setting, 1, 512, embeds=True) == (setting, 1, 512, True)
