"""`bench`: output, counters, rejected arguments. No test asserts speed."""

import json

import numpy as np
import pytest

from tests.cli.support import run_command
from tiny_llm.cli import bench
from tiny_llm.cli.open_loop import (
    LengthRange,
    TimestampTokenizer,
    latencies,
    synthetic_workload,
)

SMALL = ["--model", "demo", "--num-seqs", "4", "--min-input-len", "3", "--max-input-len", "20"]
SMALL += ["--min-output-len", "1", "--max-output-len", "6", "--batch-size", "2"]


def run(capsys, *argv: str) -> tuple[int, str, str]:
    return run_command(capsys, bench, *SMALL, *argv)


def result_of(capsys, *argv: str) -> dict:
    status, out, err = run(capsys, *argv)
    assert status == 0, err
    return json.loads(out.splitlines()[-1])


def test_table_and_json(capsys):
    status, out, err = run(capsys)
    assert status == 0
    assert err == "model: demo\n", "without a terminal, no progress bar must be printed"
    result = json.loads(out.splitlines()[-1])
    expected = {"model": "demo", "solution": "ref", "loader": "engine", "num_seqs": 4}
    assert result.items() >= (expected | {"batch_size": 2}).items()
    assert 4 * 3 <= result["prompt_tokens"] <= 4 * 20
    assert 4 * 1 <= result["output_tokens"] <= 4 * 6
    assert result["total_tokens"] == result["prompt_tokens"] + result["output_tokens"]
    for kind in ("prompt", "output", "total"):
        speed = result[f"{kind}_tokens_per_s"]
        assert speed == pytest.approx(result[f"{kind}_tokens"] / result["seconds"], rel=0.01)
    assert 0 < result["ttft_ms_median"] <= result["ttft_ms_p95"]
    assert 0 < result["itl_ms_median"] <= result["itl_ms_p95"]
    assert result["peak_memory_gb"] > 0
    latencies = ("time to first token", "inter-token latency")
    for word in ("prompt", "output", "total", *latencies, "peak memory"):
        assert word in out


@pytest.mark.parametrize(("loader", "has_flash"), [("week2", True), ("week3", False)])
def test_loader_of_each_week(capsys, loader, has_flash):
    result = result_of(capsys, "--loader", loader, "--device", "cpu")
    assert (result["loader"], result["flash_attn"]) == (loader, has_flash)
    assert result["output_tokens"] > 0


def test_workload_depends_only_on_its_lengths_and_seed(capsys):
    drafts = ("--warmup", "3", "--draft-model", "demo-draft")
    results = [result_of(capsys, "--seed", *flags) for flags in (("5",), ("5", *drafts), ("6",))]
    counts = [(result["prompt_tokens"], result["output_tokens"]) for result in results]
    assert counts[0] == counts[1] != counts[2]


def test_output_lengths_are_exact_in_every_configuration(capsys):
    lengths = ("--min-output-len", "1", "--max-output-len", "1")
    result = result_of(capsys, *lengths, "--warmup", "0", "--prefill-step", "4")
    assert (result["output_tokens"], result["warmup"]) == (4, 0)
    assert result["itl_ms_median"] is None, "expected no latency with one token per request"


def test_several_request_rates(capsys):
    argv = ["--request-rate", "50", "200", "--goodput", "ttft:1e9", "tpot:1e9"]
    status, out, err = run(capsys, *argv)
    assert status == 0, err
    assert "goodput" in out
    loads = json.loads(out.splitlines()[-1])["loads"]
    assert [load["request_rate"] for load in loads] == [50, 200]
    for load in loads:
        assert load["goodput"] == load["requests_per_s"] > 0, "the limits are several days"
        for name in ("ttft", "tpot"):
            assert 0 < load[f"{name}_ms_median"] <= load[f"{name}_ms_p95"]
    [load] = result_of(capsys, "--request-rate", "99", "--goodput", "ttft:0")["loads"]
    assert load["goodput"] == 0


@pytest.mark.slow
def test_mlx_is_the_baseline(capsys):
    engine = result_of(capsys)
    mlx = result_of(capsys, "--solution", "mlx", "--warmup", "0")
    assert (mlx["solution"], mlx["loader"]) == ("mlx", None)
    for key in ("num_seqs", "prompt_tokens", "output_tokens"):
        assert mlx[key] == engine[key]


def test_workload_lengths_cover_their_range():
    lengths = LengthRange("input", 2, 5), LengthRange("output", 1, 3)
    workload = synthetic_workload(400, *lengths, 10, 0)
    assert {len(prompt) for prompt in workload.prompts} == {2, 3, 4, 5}
    assert set(workload.output_lens) == {1, 2, 3}
    assert {token for prompt in workload.prompts for token in prompt} == set(range(10))


def test_latencies():
    result = latencies([[1.0, 1.1, 1.3], [2.0], [4.0, 4.4]], started=0.5)
    assert result["ttft_ms_median"] == pytest.approx(1500)
    assert result["ttft_ms_p95"] == pytest.approx(np.percentile([500, 1500, 3500], 95))
    assert result["itl_ms_median"] == pytest.approx(200)
    assert result["itl_ms_p95"] == pytest.approx(np.percentile([100, 200, 400], 95))


def test_timestamp_tokenizer_keeps_times_per_sequence():
    tokenizer = TimestampTokenizer()
    first, second = tokenizer.detokenizer, tokenizer.detokenizer
    second.add_token(1)
    second.add_token(1)
    first.finalize()
    assert [len(times) for times in tokenizer.sequences] == [0, 2]
    assert tokenizer.sequences[1] == sorted(tokenizer.sequences[1])
