"""`main` and `chat`: standard output, standard error, exit status."""

import argparse
import io
import re
import signal
import subprocess
import sys
import time

import mlx.core as mx
import pytest

from tests.cli.support import assert_rejected, run_command
from tests.support import FLASH_FLAGS
from tiny_llm import generate, kernels, models
from tiny_llm.cli import chat, main
from tiny_llm.cli.backends import backend, checkpoint
from tiny_llm.cli.parsing.arguments import api_key
from tiny_llm.errors import TaskNotImplemented, UserError
from tiny_llm.generate.loops import PREFILL_STEP

STATISTICS = re.compile(
    r"prompt: \d+ tokens, [\d.]+ tokens/s \| generation: (\d+) tokens, [\d.]+ tokens/s "
    r"\| peak memory: [\d.]+ GB"
)
FRANCE = ["--model", "demo", "--prompt", "What is the capital of France?"]


def run(capsys, command, *argv: str) -> tuple[int, str, str]:
    limit = [] if "--max-tokens" in argv else ["--max-tokens", "80"]
    return run_command(capsys, command, *argv, *limit)


@pytest.mark.parametrize("loader", ["week1", "week2", "week3"])
def test_output_and_statistics(capsys, loader):
    status, out, err = run(capsys, main, *FRANCE, "--loader", loader)
    assert status == 0
    assert "Paris" in out
    assert STATISTICS.fullmatch(out.splitlines()[-1])
    assert err.splitlines()[0] == "model: demo"


@pytest.mark.parametrize(
    ("solution", "loader", "expected"),
    [
        ("ref", "week1", ("load_weights", {"mtp": False})),
        ("ref", "week2", ("load_weights", {"mtp": False})),
        ("ref", "week3", ("load_weights", {"mtp": False})),
        ("mine", "week2", ("load", {})),
        ("mine", "engine", ("load_weights", {"mtp": False})),
        ("mlx", "week1", ("load", {})),
    ],
)
def test_mlx_lm_models_are_loaded_only_when_needed(monkeypatch, solution, loader, expected):
    for name in ("load", "load_weights"):
        monkeypatch.setattr(checkpoint, name, lambda *_, name=name, **options: (name, options))
    args = argparse.Namespace(solution=solution, loader=loader, load_format="auto")
    assert checkpoint.load_for_solution(args, "demo") == expected


@pytest.mark.parametrize("solution", ["mine", "ref"])
def test_model_without_quantization_support_gets_dequantized_weights(capsys, monkeypatch, solution):
    def build(name, mlx_model, week, **options):
        if hasattr(mlx_model.model.embed_tokens, "scales"):
            raise TaskNotImplemented(
                "week 2, day 3, task 4: _weight is yours to write; see the book"
            )
        return mlx_model.model.embed_tokens.weight

    monkeypatch.setattr(backend, "dispatch_model", build)
    mlx_model, tokenizer = models.load("demo")
    model_checkpoint = checkpoint.Checkpoint("demo", mlx_model, tokenizer)
    args = argparse.Namespace(solution=solution, loader="week2", enable_flash_attn=False)
    if solution == "ref":
        with pytest.raises(TaskNotImplemented):
            backend.build_model(args, model_checkpoint)
        return
    assert backend.build_model(args, model_checkpoint).dtype == mx.bfloat16
    err = capsys.readouterr().err
    assert err == "weights: dequantized (week 2, day 3, task 4: _weight is yours to write)\n"


def test_loader_engine(capsys):
    status, out, err = run(capsys, main, *FRANCE, "--loader", "engine")
    assert (status, err) == (0, "model: demo\n")
    assert "Paris" in out


def test_prefix_cache_dir(capsys, tmp_path):
    flags = ["--model", "demo", "--prompt", "RoPE is " * 60, "--max-tokens", "4"]
    outputs = []
    for _ in range(2):
        assert main.main([*flags, "--prefix-cache-dir", str(tmp_path)]) == 0
        outputs.append(capsys.readouterr().out)
    assert main.main([*flags, "--prefix-cache-disk-bytes", "1e9"]) == 2
    assert "requires prefix_cache_dir" in capsys.readouterr().err
    assert outputs[0].splitlines()[0] == outputs[1].splitlines()[0]
    assert (tmp_path / "pages").is_dir()


def test_default_model_is_named_with_the_reason(capsys):
    _, _, err = run(capsys, main, "--prompt", "Hello!", "--max-tokens", "1")
    assert err.startswith("model: demo (it ships with tiny-llm, and qwen3-0.6b is not in")


@pytest.mark.slow
def test_missing_extension_falls_back_to_week_1_with_a_notice(capsys, monkeypatch):
    monkeypatch.setattr(kernels, "is_built", lambda: False)
    status, out, err = run(capsys, main, *FRANCE)
    assert status == 0
    assert "Paris" in out
    assert err.startswith("loader: week1 (the C++ extension is not built; `pdm run build-ext`")
    _, _, explicit_err = run(capsys, main, *FRANCE, "--loader", "week1", "--max-tokens", "1")
    assert explicit_err == "model: demo\n"


def test_engine_option_without_the_extension_names_the_build_command(capsys, monkeypatch):
    def extension():
        raise UserError("run `pdm run build-ext`.")

    monkeypatch.setattr(kernels, "is_built", lambda: False)
    monkeypatch.setattr(kernels, "extension", extension)
    result = run(capsys, main, *FRANCE, "--block-size", "16")
    assert_rejected(result, "main", "pdm run build-ext")


def test_empty_api_key_is_rejected(monkeypatch):
    monkeypatch.setenv("TINY_LLM_API_KEY", "secret")
    assert api_key(None) == "secret"
    with pytest.raises(UserError, match="--api-key must not be empty"):
        api_key("")


def test_thinking(capsys):
    _, plain, _ = run(capsys, main, *FRANCE)
    _, thinking, _ = run(capsys, main, *FRANCE, "--enable-thinking")
    assert "<think>" not in plain
    reasoning, end, output = thinking.removeprefix("<think>").partition("</think>")
    assert end, "the output must contain the end of the reasoning"
    assert reasoning.strip()
    assert "Paris" in output


@pytest.mark.slow
def test_model_without_thinking_ignores_the_flag(capsys, monkeypatch):
    loaded = models.load_weights("demo")
    monkeypatch.setattr(type(loaded[1]), "has_thinking", False)
    monkeypatch.setattr(checkpoint, "load_weights", lambda *args, **options: loaded)
    status, _, err = run(capsys, main, *FRANCE, "--enable-thinking", "--max-tokens", "2")
    assert status == 0
    assert "the model has no thinking mode: --enable-thinking is ignored" in err


def test_max_tokens(either_device, capsys):
    _, out, _ = run(capsys, main, *FRANCE, "--max-tokens", "3")
    assert STATISTICS.fullmatch(out.splitlines()[-1])[1] == "3"


def test_seed_makes_sampling_reproducible(capsys):
    # The demo model's distribution is so peaked that output varies only at very high temperatures.
    argv = [*FRANCE, "--sampler-temp", "50", "--sampler-top-k", "40", "--max-tokens", "12"]

    def sample(seed: int, argv: list[str] = argv) -> str:
        return run(capsys, main, *argv, "--seed", str(seed))[1].rpartition("\n\n")[0]

    first = sample(1)
    assert first == sample(1)
    assert len({first, *(sample(seed) for seed in (2, 3, 4))}) > 1
    assert first == sample(1, [flag.replace("sampler-temp", "temperature") for flag in argv])


def test_short_names_of_the_sampling_flags():
    parse = main.make_parser("main").parse_args
    args = parse(["--temperature", "0.5", "--top-p", "0.9", "--top-k", "7"])
    assert (args.sampler_temp, args.sampler_top_p, args.sampler_top_k) == (0.5, 0.9, 7)


def test_block_size_and_num_drafts_are_passed_to_the_engine(monkeypatch):
    llm_options = {}
    monkeypatch.setattr(checkpoint, "LLM", lambda *args, **options: llm_options.update(options))
    flags = ["--model", "demo", "--speculative", "ngram", "--num-drafts", "3", "--block-size", "8"]
    backend.open_backend(main.make_parser("main").parse_args(flags))
    assert (llm_options["block_size"], llm_options["num_drafts"]) == (8, 3)
    assert llm_options["max_num_batched_tokens"] == 1 + 3 + PREFILL_STEP


@pytest.mark.slow
def test_mlx_is_the_baseline(capsys):
    _, engine_out, _ = run(capsys, main, *FRANCE, "--max-tokens", "8")
    status, mlx_out, _ = run(capsys, main, *FRANCE, "--max-tokens", "8", "--solution", "mlx")
    assert status == 0
    assert STATISTICS.fullmatch(mlx_out.splitlines()[-1])
    assert engine_out.rpartition("\n\n")[0] == mlx_out.rpartition("\n\n")[0]


@pytest.mark.slow
def test_mlx_with_a_draft_model(capsys):
    argv = ["--solution", "mlx", "--draft-model", "demo-draft", "--max-tokens", "6"]
    status, out, _ = run(capsys, main, *FRANCE, *argv)
    assert status == 0
    assert STATISTICS.fullmatch(out.splitlines()[-1])


def test_draft_model(capsys):
    _, plain, _ = run(capsys, main, *FRANCE, "--loader", "week2")
    argv = ["--loader", "week2", "--draft-model", "demo-draft"]
    status, drafted, _ = run(capsys, main, *FRANCE, *argv)
    assert status == 0
    assert drafted.rpartition("\n\n")[0] == plain.rpartition("\n\n")[0]
    pattern = r"\| draft tokens: (\d+) of \d+ accepted \(\d+%\), \d+ target steps \| peak memory"
    accepted = re.search(pattern, drafted.splitlines()[-1])
    assert accepted
    assert int(accepted[1]) > 0


def test_paged_cache_does_not_change_output(capsys):
    _, expected, _ = run(capsys, main, *FRANCE, "--loader", "week2")
    for flags in ([], ["--draft-model", "demo-draft"]):
        status, out, _ = run(capsys, main, *FRANCE, "--loader", "week3", *flags)
        assert status == 0
        assert out.rpartition("\n\n")[0] == expected.rpartition("\n\n")[0]


def test_draft_model_selects_a_supporting_loader(capsys):
    status, out, _ = run(capsys, main, *FRANCE, "--draft-model", "demo-draft", "--max-tokens", "3")
    assert status == 0
    assert "draft tokens: " in out


def test_draft_model_with_a_seed(capsys):
    argv = ["--draft-model", "demo-draft", "--sampler-temp", "2", "--seed", "3"]
    _, first, _ = run(capsys, main, *FRANCE, *argv, "--max-tokens", "12")
    _, again, _ = run(capsys, main, *FRANCE, *argv, "--max-tokens", "12")
    assert first.rpartition("\n\n")[0] == again.rpartition("\n\n")[0]


@pytest.mark.parametrize(("flag", "flash"), FLASH_FLAGS)
def test_flash_attention_is_passed_to_both_models(capsys, monkeypatch, flag, flash):
    calls = []

    def dispatch(name, mlx_model, week, **options):
        calls.append((name, week, options))
        return generate.dispatch_model(name, mlx_model, week)

    monkeypatch.setattr(backend, "dispatch_model", dispatch)
    loader = [] if flag else ["--loader", "week2"]  # either flag implies the Week 2 loader
    argv = [*flag, *loader, "--device", "cpu", "--draft-model", "demo-draft", "--max-tokens", "2"]
    status, _, _ = run(capsys, main, *FRANCE, *argv)
    assert status == 0
    options = {"enable_flash_attn": flash}
    assert calls == [("demo", 2, options), ("demo-draft", 2, options)]


def test_prompt_from_standard_input(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("What is the capital of France?"))
    _, out, _ = run(capsys, main, "--model", "demo", "--prompt", "-")
    assert "Paris" in out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--model", "nonsense"], "unknown model 'nonsense'"),
        (["--model", ""], "unknown model ''"),
        (["--model", "qwen3-8b"], "not on this machine"),
        (["--model", "/tmp"], "has no config.json"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", " \n"], "the prompt is empty"),
        (["--prompt", "word " * 3000], "the model's context length is"),
        (["--sampler-temp", "-1"], "temperature must be a number ≥ 0 (0 is greedy), got -1.0"),
        (["--sampler-temp", "nan"], "temperature must be a number ≥ 0 (0 is greedy), got nan"),
        (["--sampler-temp", "warm"], "invalid float value: 'warm'"),
        (["--sampler-top-p", "0"], "top-p must be in (0, 1] (1 keeps every token), got 0.0"),
        (["--sampler-top-p", "1.01"], "top-p must be in (0, 1] (1 keeps every token), got 1.01"),
        (["--sampler-top-k", "0"], "top-k must be an integer of at least 1, got 0"),
        (["--sampler-top-k", "2.5"], "invalid int value: '2.5'"),
        (["--max-tokens", "0"], "--max-tokens: must be at least 1, got 0"),
        (["--seed", "-1"], "--seed: must be between 0 and 18446744073709551615, got -1"),
        (["--loader", "week9"], "--loader: invalid choice: 'week9' (choose from"),
        (["--device", "tpu"], "--device: invalid choice: 'tpu' (choose from"),
        (["--solution", "theirs"], "--solution: invalid choice: 'theirs' (choose from"),
        (["--solution", "mine"], "--solution mine requires a learner's tree"),
        (["--solution", "mlx", "--loader", "week1"], "--loader has no effect with --solution mlx"),
        (["--solution", "mlx", "--enable-flash-attn"], "--enable-flash-attn has no effect"),
        (["--enable-flash-attn", "--loader", "engine"], "has no effect on the engine"),
        (["--enable-flash-attn", "--loader", "week1"], "week1 does not have this kernel"),
        (["--enable-flash-attn", "--loader", "week3"], "week3 does not have this kernel"),
        (["--no-enable-flash-attn", "--loader", "week3"], "week3 has only paged attention"),
        (["--draft-model", "demo-draft", "--loader", "week1"], "week1 has no KV cache to rewind"),
        (["--block-size", "0"], "--block-size: must be at least 1, got 0"),
        (["--block-size", "16", "--loader", "week2"], "--block-size: only the engine has a"),
        (["--num-drafts", "2", "--solution", "mlx"], "--num-drafts has no effect with"),
        (["--num-drafts", "2"], "num_drafts=2 requires draft_model or speculative='ngram'"),
        (["--temperatur", "1"], "unrecognized arguments: --temperatur 1"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_invalid_input_prints_one_sentence(capsys, argv, message):
    result = run(capsys, main, *argv)
    assert_rejected(result, "main", message)
    assert len([line for line in result[2].splitlines() if not line.startswith("model: ")]) == 1


def test_device_gpu_without_a_gpu(capsys):
    if mx.is_available(mx.Device(mx.gpu)):
        pytest.skip("this machine has a GPU")
    status, _, err = run(capsys, main, *FRANCE, "--device", "gpu")
    assert status == 2
    assert "MLX found no GPU" in err


def converse(capsys, monkeypatch, text: str, *argv: str) -> tuple[str, str]:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    status, out, err = run(capsys, chat, "--model", "demo", *argv)
    assert status == 0
    return out, err


@pytest.mark.parametrize("flags", [[], ["--loader", "week3"]], ids=str)
def test_chat_keeps_and_clears_its_history(capsys, monkeypatch, flags):
    lines = "My name is Tom.\nWhat is my name?\n/reset\nWhat is my name?\n"
    out, err = converse(capsys, monkeypatch, lines, *flags)
    outputs = out.splitlines()
    assert "Tom" in outputs[1]
    assert "Tom" not in outputs[2]
    assert "history cleared" in err


def test_chat_unknown_command_and_exit(capsys, monkeypatch):
    out, err = converse(capsys, monkeypatch, "/help\n\n/exit\nHello!\n")
    assert out == "", "chat must ignore input after /exit"
    assert "unknown command /help; /reset clears" in err


def test_chat_continues_after_an_overlong_turn(capsys, monkeypatch):
    lines = "word " * 3000 + "\nWhat is the capital of France?\n"
    out, err = converse(capsys, monkeypatch, lines)
    assert "the model's context length is" in err
    assert "Paris" in out


def test_chat_drops_reasoning_from_the_history(capsys, monkeypatch):
    conversations = []
    original = chat.ChatSession.ask

    def ask(self, text):
        original(self, text)
        conversations.append(self.messages[-1]["content"])

    monkeypatch.setattr(chat.ChatSession, "ask", ask)
    out, _ = converse(capsys, monkeypatch, "What is the capital of France?\n", "--enable-thinking")
    assert "</think>" in out
    assert "think" not in conversations[0]
    assert "Paris" in conversations[0]


def start(command: str, *argv: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", f"tiny_llm.cli.{command}", "--model", "demo", *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def test_chat_interrupt_stops_only_the_output():
    process = start("chat")
    process.stdin.write("Give me a short introduction to large language model.\n")
    process.stdin.flush()
    assert process.stdout.read(1), "expected output before the interrupt"
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    out, err = process.communicate("What is the capital of France?\n", timeout=120)
    assert process.returncode == 0
    assert "[stopped]" in err
    assert "Paris" in out


def test_interrupt_prints_no_traceback():
    process = start("main")
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_closed_output_pipe():
    process = start("main", "--prompt", "What is the capital of France?")
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=60) == 0
    assert "Traceback" not in err
