"""`main`: standard output, standard error, exit status."""

import argparse
import io
import re
import signal
import subprocess
import sys
from unittest.mock import Mock

import mlx.core as mx
import pytest

from tests.cli.support import run_command
from tiny_llm import generate, kernels, models
from tiny_llm.cli import main
from tiny_llm.cli.backends import local
from tiny_llm.errors import TaskNotImplemented, UserError
from tiny_llm.generate.loops import PREFILL_STEP

STATISTICS = re.compile(
    r"^prompt: \d+ tokens, [\d.]+ tokens/s \| generation: (\d+) tokens, [\d.]+ tokens/s "
    r"\| (draft tokens: .* \| )?peak memory: [\d.]+ GB$"
)
FRANCE = ["--model", "demo", "--prompt", "What is the capital of France?"]


def run(capsys, *argv: str) -> tuple[int, str, str]:
    limit = [] if "--max-tokens" in argv else ["--max-tokens", "80"]
    return run_command(capsys, main, *argv, *limit)


def answer(out: str) -> tuple[str, str]:
    """The text and the statistics."""
    text, _, statistics = out.rpartition("\n\n")
    return text, statistics.rstrip()


@pytest.mark.parametrize(
    "flags",
    [
        ["--loader", "week1"],
        ["--loader", "week2"],
        ["--loader", "week3"],
        ["--loader", "engine"],
        ["--loader", "week2", "--draft-model", "demo-draft"],
        ["--loader", "week3", "--draft-model", "demo-draft"],
        ["--draft-model", "demo-draft"],
        pytest.param(["--solution", "mlx"], marks=pytest.mark.slow),
        pytest.param(["--solution", "mlx", "--draft-model", "demo-draft"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_output_and_statistics(capsys, monkeypatch, flags):
    status, out, err = run(capsys, *FRANCE, *flags)
    assert status == 0
    text, statistics = answer(out)
    assert text == "The capital of France is Paris."
    assert err.splitlines() == ["model: demo"]
    assert STATISTICS.search(statistics)
    if "--draft-model" in flags and "--solution" not in flags:
        accepted = r"draft tokens: [1-9]\d* of \d+ accepted \(\d+%\), \d+ target st"
        assert re.search(accepted, statistics)
    monkeypatch.setattr(sys, "stdin", io.StringIO(FRANCE[-1]))
    argv = ["--model", "demo", "--prompt", "-", *flags, "--max-tokens", "3"]
    _, statistics = answer(run(capsys, *argv)[1])
    assert STATISTICS.search(statistics)[1] == "3"


@pytest.mark.parametrize(
    ("solution", "loader", "expected"),
    [
        *(("ref", week, ("load_weights", {"mtp": False})) for week in ("week1", "week2", "week3")),
        ("mine", "week2", ("load", {})),
        ("mine", "engine", ("load_weights", {"mtp": False})),
        ("mlx", "week1", ("load", {})),
    ],
)
def test_mlx_lm_models_are_loaded_only_when_needed(monkeypatch, solution, loader, expected):
    for name in ("load", "load_weights"):
        monkeypatch.setattr(local, name, lambda *_, name=name, **options: (name, options))
    args = argparse.Namespace(solution=solution, loader=loader, load_format="auto")
    assert local.load_for_solution(args, "demo") == expected


@pytest.mark.parametrize("solution", ["mine", "ref"])
def test_model_without_quantization_support_gets_dequantized_weights(capsys, monkeypatch, solution):
    def build(name, mlx_model, week, **options):
        if hasattr(mlx_model.model.embed_tokens, "scales"):
            raise TaskNotImplemented(
                "week 2, day 3, task 4: _weight is yours to write; see the book"
            )
        return mlx_model.model.embed_tokens.weight

    monkeypatch.setattr(local, "dispatch_model", build)
    checkpoint = local.Checkpoint("demo", *models.load("demo"))
    args = argparse.Namespace(solution=solution, loader="week2", enable_flash_attn=False)
    if solution == "ref":
        with pytest.raises(TaskNotImplemented):
            local.build_model(args, checkpoint)
        return
    assert local.build_model(args, checkpoint).dtype == mx.bfloat16
    err = capsys.readouterr().err
    assert err == "weights: dequantized (week 2, day 3, task 4: _weight is yours to write)\n"


def test_prefix_cache_dir(capsys, tmp_path):
    flags = ["--model", "demo", "--prompt", "RoPE is " * 60, "--max-tokens", "4"]
    outputs = [run(capsys, *flags, "--prefix-cache-dir", str(tmp_path))[1] for _ in range(2)]
    assert outputs[0].splitlines()[0] == outputs[1].splitlines()[0]
    assert (tmp_path / "pages").is_dir()


def test_default_model_is_named_with_the_reason(capsys):
    _, _, err = run(capsys, "--prompt", "Hello!", "--max-tokens", "1")
    assert err.startswith("model: demo (it ships with tiny-llm, and qwen3-0.6b is not in")


@pytest.mark.slow
def test_missing_extension_falls_back_to_week_1_with_a_notice(capsys, monkeypatch):
    monkeypatch.setattr(kernels, "is_built", lambda: False)
    status, out, err = run(capsys, *FRANCE)
    assert status == 0
    assert "Paris" in out
    assert err.startswith("loader: week1 (the C++ extension is not built; `pdm run build-ext`")
    _, _, explicit_err = run(capsys, *FRANCE, "--loader", "week1", "--max-tokens", "1")
    assert explicit_err == "model: demo\n"


def test_engine_option_without_the_extension_names_the_build_command(capsys, monkeypatch):
    monkeypatch.setattr(kernels, "is_built", lambda: False)
    missing = Mock(side_effect=UserError("run `pdm run build-ext`."))
    monkeypatch.setattr(kernels, "extension", missing)
    status, out, err = run(capsys, *FRANCE, "--block-size", "16")
    assert (status, out) == (2, "")
    assert err.splitlines()[-1] == "main: run `pdm run build-ext`."


def test_thinking(capsys):
    _, thinking, _ = run(capsys, *FRANCE, "--enable-thinking")
    reasoning, end, output = thinking.removeprefix("<think>").partition("</think>")
    assert end, "the output must contain the end of the reasoning"
    assert reasoning.strip()
    assert "Paris" in output


@pytest.mark.slow
def test_model_without_thinking_ignores_the_flag(capsys, monkeypatch):
    loaded = models.load_weights("demo")
    monkeypatch.setattr(type(loaded[1]), "has_thinking", False)
    status, _, err = run(capsys, *FRANCE, "--enable-thinking", "--max-tokens", "2")
    assert status == 0
    assert "the model has no thinking mode: --enable-thinking is ignored" in err


def test_seed_makes_sampling_reproducible(capsys):
    # The demo model's distribution is so peaked that output varies only at very high temperatures.
    argv = [*FRANCE, "--sampler-temp", "50", "--sampler-top-k", "40", "--max-tokens", "12"]

    def sample(seed: int, argv: list[str] = argv) -> str:
        return run(capsys, *argv, "--seed", str(seed))[1].rpartition("\n\n")[0]

    first = sample(1)
    assert first == sample(1)
    assert len({first, *(sample(seed) for seed in (2, 3, 4))}) > 1
    assert first == sample(1, [flag.replace("sampler-temp", "temperature") for flag in argv])
    args = main.make_parser("main").parse_args(["--top-p", "0.9", "--top-k", "7"])
    assert (args.sampler_top_p, args.sampler_top_k) == (0.9, 7)


def test_block_size_and_num_drafts_are_passed_to_the_engine(monkeypatch):
    llm_options = {}
    monkeypatch.setattr(local, "LLM", lambda *args, **options: llm_options.update(options))
    flags = ["--model", "demo", "--speculative", "ngram", "--num-drafts", "3", "--block-size", "8"]
    local.open_backend(main.make_parser("main").parse_args(flags))
    assert (llm_options["block_size"], llm_options["num_drafts"]) == (8, 3)
    assert llm_options["max_num_batched_tokens"] == 1 + 3 + PREFILL_STEP


@pytest.mark.parametrize(
    ("flag", "flash"),
    [("--loader=week2", True), ("--enable-flash-attn", True), ("--no-enable-flash-attn", False)],
)
def test_flash_attention_is_passed_to_both_models(capsys, monkeypatch, flag, flash):
    """It is on by default on the CPU; either flag implies the Week 2 loader."""
    calls = []

    def dispatch(name, mlx_model, week, **options):
        calls.append((name, week, options))
        return generate.dispatch_model(name, mlx_model, week)

    monkeypatch.setattr(local, "dispatch_model", dispatch)
    argv = [flag, "--device", "cpu", "--draft-model", "demo-draft", "--max-tokens", "2"]
    assert run(capsys, *FRANCE, *argv)[0] == 0
    options = {"enable_flash_attn": flash}
    assert calls == [("demo", 2, options), ("demo-draft", 2, options)]


@pytest.mark.skipif(mx.is_available(mx.Device(mx.gpu)), reason="this machine has a GPU")
def test_device_gpu_without_a_gpu(capsys):
    status, _, err = run(capsys, *FRANCE, "--device", "gpu")
    assert status == 2
    assert "MLX found no GPU" in err


def start(*argv: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "tiny_llm.cli.main", "--model", "demo", *argv]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_interrupt_prints_no_traceback():
    process = start()
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_closed_output_pipe():
    process = start(*FRANCE[2:])
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    assert process.wait(timeout=60) == 0
