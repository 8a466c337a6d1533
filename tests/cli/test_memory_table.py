"""`check --model`: table of memory use and decoding speed."""

import json
from unittest.mock import Mock

import pytest
from rich.console import Console

from tests.engine.hybrid import STATE_BYTES, write_hybrid
from tests.models.support import FAMILIES, MIXTURE, write_family
from tiny_llm import LLM, SamplingParams, UserError, load_weights
from tiny_llm.cli import check_installation, memory_table
from tiny_llm.cli.memory_table import DecodeSpeed, MemoryEstimate, first_layers, format_bytes
from tiny_llm.demo import DRAFT_PATH, TARGET_PATH
from tiny_llm.engine.engine_args import EngineArgs
from tiny_llm.engine.execution import kv_memory
from tiny_llm.models import BUNDLED_MODELS
from tiny_llm.models.memory import model_size

GB = 10**9


@pytest.fixture
def memory(monkeypatch):
    """Simulates 16 GB of memory, of which 12 GB are available, and a decoding speed."""
    for module in (memory_table, kv_memory):
        monkeypatch.setattr(module, "total_memory", lambda: 16 * GB)
    monkeypatch.setattr(memory_table, "available_memory", lambda: 12 * GB)
    divisors = {"auto": 100, "int8": 200}
    speed = Mock(tokens_per_second=lambda context, dtype: context / divisors[dtype])
    monkeypatch.setattr(check_installation, "DecodeSpeed", lambda folder: speed)


def check(capsys, *argv):
    """Runs the command; returns its status, table cells by row label, and output."""
    status = check_installation.main(argv, "check")
    output = capsys.readouterr().out
    rows = [line.strip("│ ").split("│") for line in output.splitlines() if line.startswith("│")]
    return status, {label.strip(): [c.strip() for c in cells] for label, *cells in rows}, output


@pytest.fixture(autouse=True)
def _terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def config_folder(tmp_path, **changes):
    """Folder with the config of an 8B model, but no weights."""
    sizes = {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36}
    sizes |= {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    sizes |= {"vocab_size": 151936, "max_position_embeddings": 40960}
    more = {"tie_word_embeddings": False, "quantization": {"bits": 4, "group_size": 64}}
    config = {**FAMILIES["qwen3"], **sizes, **more, **changes}
    tmp_path.joinpath("config.json").write_text(json.dumps(config))
    return str(tmp_path)


def test_table_of_a_model_that_is_not_downloaded(memory, tmp_path, capsys):
    status, rows, output = check(capsys, "--model", config_folder(tmp_path))
    assert status == 0
    # 8.19e9 weights of 4.5 bits. KV per token: keys and values of 36 layers and 8 heads, i.e. 576
    # rows of 256 bytes (bfloat16) or 132 bytes (int8). KV memory: 3/4 × (12 − 4.61) GB.
    assert (
        rows.items()
        >= {
            "weights": ["4.61 GB"] * 2,
            "KV cache per token": ["147.5 kB", "76.0 kB"],
            "KV memory": ["5.54 GB"] * 2,
            "context in tokens": ["40,960"] * 2,
            "tokens in KV memory": ["37,568", "72,896"],
            "longest prompt in tokens": ["37,568", "40,959"],
            "tokens/s after 1,024 tokens": ["10.2", "5.1"],
            "tokens/s after 37,568 tokens": ["376", "188"],
        }.items()
    )
    assert "state" not in output
    assert "window" not in output
    assert max(len(line) for line in output.splitlines() if line[:1] in "┏┡│└") <= 80
    assert "KV memory: 3/4 of the 7.39 GB left by the weights" in output
    assert "predicted from measured layers" in output


def test_layers_with_a_window_need_memory_for_the_window_only(memory, tmp_path, capsys):
    types = ["sliding_attention", "full_attention"] * 18
    folder = config_folder(tmp_path, use_sliding_window=True, sliding_window=128, layer_types=types)
    _, rows, _ = check(capsys, "--model", folder, "--max-num-seqs", "2")
    assert rows["KV cache per token"] == ["147.5 kB", "76.0 kB"]
    assert rows["KV cache per token past the window"] == ["73.7 kB", "38.0 kB"]
    # 18 layers with 2 × 40,960 tokens, 18 layers with a window and a step.
    assert rows["KV memory"] == ["5.54 GB", "3.15 GB"]
    assert rows["longest prompt in tokens"] == ["40,959"] * 2


def test_model_that_does_not_fit(memory, tmp_path, capsys):
    status, rows, output = check(capsys, "--model", config_folder(tmp_path, num_hidden_layers=360))
    assert status == 1
    assert set(rows) == {"weights", "KV cache per token", "context in tokens"}
    assert "the weights do not fit in memory; use a smaller model" in output


def test_explicit_memory_and_context(memory, tmp_path, capsys):
    flags = ["--kv-cache-bytes", "9e9", "--max-model-len", "1000", "--block-size", "16"]
    _, rows, output = check(capsys, "--model", config_folder(tmp_path), *flags)
    assert rows["KV memory"] == ["9.00 GB"] * 2
    assert rows["tokens in KV memory"] == ["61,024", "118,368"]
    assert rows["context in tokens"] == ["1,000"] * 2
    assert rows["longest prompt in tokens"] == ["999"] * 2
    assert "weights and KV memory exceed the available memory by 1.61 GB" in output
    assert "left by the weights" not in output


def test_small_model_gets_only_the_memory_its_requests_use(memory, capsys):
    _, rows, output = check(capsys, "--model", "demo", "--max-num-seqs", "4")
    assert rows["tokens in KV memory"] == ["8,192"] * 2  # 4 requests of 2,048 tokens
    assert "KV memory: enough for 4 requests of 2,048 tokens; set --kv-cache-bytes" in output


def test_draft_model_shares_the_memory(memory, capsys):
    flags = ["--model", "demo", "--draft-model", "demo-draft", "--kv-cache-bytes", "1e8"]
    _, rows, _ = check(capsys, *flags)
    weights = sum(model_size(folder).weight_bytes for folder in (TARGET_PATH, DRAFT_PATH))
    assert rows["weights with the draft model"] == [format_bytes(weights)] * 2
    llm = LLM("demo", draft_model="demo-draft", kv_cache_bytes=1e8)
    assert rows["tokens in KV memory"][0] == f"{llm.scheduler.config.num_pages * 32:,}"


def test_recurrent_states_of_a_hybrid_model(memory, tmp_path, capsys):
    folder = str(write_hybrid(tmp_path / "model"))
    _, rows, _ = check(capsys, "--model", folder, "--kv-cache-bytes", "1e7")
    assert rows["state per request"] == [format_bytes(STATE_BYTES)] * 2
    config = LLM(folder, kv_cache_bytes=1e7).scheduler.config
    assert rows["states in KV memory"][0] == f"{config.num_state_slots:,}"
    assert rows["tokens in KV memory"][0] == f"{config.max_tokens_in_pages:,}"


def test_ranks_share_the_memory(memory, tmp_path, capsys):
    folder = str(write_family(tmp_path / "model", MIXTURE))
    one_rank, two_ranks = (
        check(capsys, "--model", folder, "--kv-cache-bytes", "1e7", *flags)[1]
        for flags in ((), ("--tensor-parallel-size", "2"))
    )
    assert one_rank["tokens in KV memory"] == two_ranks["tokens in KV memory"]
    # Two ranks have more weights in total than one, because the router is replicated on both.
    assert float(two_ranks["weights"][0].split()[0]) > float(one_rank["weights"][0].split()[0])


def test_pooling_model_does_not_decode(memory, capsys):
    _, rows, output = check(capsys, "--model", "demo", "--task", "score")
    assert "longest prompt in tokens" in rows
    assert "tokens/s" not in output


def test_table_matches_the_engine(memory):
    size = model_size(TARGET_PATH)
    estimate = MemoryEstimate.compute(EngineArgs(""), [size], available=12 * GB)
    llm = LLM("demo", kv_cache_bytes=estimate.memory.num_bytes)
    config = llm.scheduler.config
    assert config.num_pages * config.page_size == estimate.num_tokens
    one_token = SamplingParams(max_tokens=1)
    llm.add_request([5] * estimate.longest_prompt, one_token)
    with pytest.raises(UserError):
        llm.add_request([5] * (estimate.longest_prompt + 1), one_token)


def test_markup_in_a_model_name_is_printed_verbatim(capsys):
    args, size = EngineArgs("", kv_cache_bytes=10**8), model_size(TARGET_PATH)
    estimate = MemoryEstimate.compute(args, [size], available=12 * GB)
    Console().print(memory_table.memory_table("[red]/x", {"auto": estimate}))
    assert "[red]/x" in capsys.readouterr().out


@pytest.mark.parametrize("name", [pytest.param("demo", marks=pytest.mark.slow), "demo-hybrid"])
def test_decoding_speed_is_measured(name):
    speed = DecodeSpeed(BUNDLED_MODELS[name])
    assert all(speed.tokens_per_second(300, dtype) > 0 for dtype in ("auto", "int8"))


@pytest.mark.parametrize(
    ("name", "samples", "seconds", "expected"),
    [
        # A step takes 0.25 s in the engine, 0.5 s in the head and 0.125 s per layer.
        ("demo", [1, 2], lambda layers: 0.5 + 0.125 * layers, 1 / 1.75),
        ("demo-hybrid", [8], lambda layers: 0.5 + 0.125 * layers, 1 / 1.75),
        # Noise must not make the predicted time negative.
        ("demo", [1, 2], lambda layers: 0.75 / layers, 1),
    ],
)
def test_decoding_speed_is_extrapolated_over_layers(monkeypatch, name, samples, seconds, expected):
    monkeypatch.setattr(memory_table, "SAMPLE_BYTES", 1)
    monkeypatch.setattr(memory_table, "_engine_seconds", lambda is_hybrid: 0.25)
    step = Mock(side_effect=lambda decoder, context: seconds(len(decoder.layers)))
    monkeypatch.setattr(memory_table, "_step_seconds", step)
    assert DecodeSpeed(BUNDLED_MODELS[name]).tokens_per_second(300, "auto") == expected
    assert [len(call.args[0].layers) for call in step.call_args_list] == samples


def test_layers_of_a_sample():
    hybrid, _ = load_weights("demo-hybrid")
    sample = first_layers(hybrid, 4)
    assert len(sample.layers) == sample.args.num_hidden_layers == 4
    assert sample.args.delta_net.layers == (0, 1, 2)
    assert len(hybrid.layers) == 8


def test_format_bytes():
    numbers = {0: "0 B", 999: "999 B", 1500: "1.5 kB", 2.25e6: "2.2 MB", 1.2345e9: "1.23 GB"}
    assert {number: format_bytes(number) for number in numbers} == numbers
