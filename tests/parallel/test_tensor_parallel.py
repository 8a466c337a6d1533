"""A model on two ranks compared with one rank: tokens, logits and errors."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from tests.engine.hybrid import build as hybrid_engine
from tests.engine.hybrid import write_hybrid
from tests.engine.support import PARAGRAPH, assert_same_outputs, chat, record_logits, run_cases
from tests.models.support import FAMILIES, GEMMA4, GEMMA4_MIXTURE, MIXTURE, write_family
from tests.support import as_numpy, object_schema
from tiny_llm import LLM, SamplingParams, StructuredOutputs, UserError
from tiny_llm.demo import TARGET_PATH
from tiny_llm.models import load_weights
from tiny_llm.models.checkpoint.layout import read_tensor_headers
from tiny_llm.models.checkpoint.sharding import RankShard
from tiny_llm.models.families.registry import read_config
from tiny_llm.models.parallel.layers import MAX_MESSAGE_BYTES

pytestmark = pytest.mark.usefixtures("on_cpu")

GREEDY = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
QUESTIONS = [chat("What is the capital of Japan?"), chat("What is the KV cache?"), [17, 5, 99]]
TOWN_SCHEMA = {**object_schema(of={"enum": ["Lenmora", "Tavel"]}), "additionalProperties": False}
# 5 quantization groups: an uneven split.
SPLIT_SIZES = {"intermediate_size": 5 * 128, "num_hidden_layers": 2}
CONFIGS = {
    **{name: {**config, **SPLIT_SIZES} for name, config in FAMILIES.items()},
    "qwen3_moe": {**MIXTURE, "moe_intermediate_size": 256},
    "gemma4": {**GEMMA4, "intermediate_size": 5 * 128, "vocab_size_per_layer_input": 5000},
    "gemma4_moe": {**GEMMA4_MIXTURE, "intermediate_size": 5 * 128, "moe_intermediate_size": 256},
    "ministral3-window": {**FAMILIES["ministral3"], **SPLIT_SIZES, "sliding_window": 19},
    "qwen2-window": {
        **FAMILIES["qwen2"],
        **SPLIT_SIZES,
        "use_sliding_window": True,
        "sliding_window": 19,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}
# In format "4bit", each of the 4 heads is one quantization group.
FORMATS = {
    "float32": {"torch_dtype": "float32"},
    "bfloat16": {"torch_dtype": "bfloat16"},
    "4bit": {
        "torch_dtype": "bfloat16",
        "head_dim": 64,
        "quantization": {"group_size": 64, "bits": 4},
    },
}


# Set TEST_RANKS=4 to run this file on four ranks, except tests that need exactly two. CI uses two.
RANKS = int(os.environ.get("TEST_RANKS", "2"))


def engine(name, size=RANKS, **options) -> LLM:
    return LLM(str(name), **{"kv_cache_bytes": 2**24, "tensor_parallel_size": size, **options})


def tokens(llm, prompts=QUESTIONS, params=GREEDY) -> list[list[int]]:
    return [list(output.token_ids) for output in llm.generate(prompts, params)]


@pytest.fixture
def folder(tmp_path):
    """Returns a function that writes a random model with the demo's tokenizer."""

    def write(config):
        # The vocabulary is not divisible by the number of ranks, so its shards differ in size.
        config = {**config, "vocab_size": 4097}
        path = write_family(tmp_path / "model", config)
        for file in TARGET_PATH.iterdir():
            if "token" in file.name:
                shutil.copy(file, path)
        return path

    return write


@pytest.mark.slow
def test_demo_tokens_match_one_rank():
    # Rounding partial sums to bfloat16 changes logits by up to the bound of
    # `test_logits_are_close_to_those_of_one_rank`. Tokens may differ where two logits are closer.
    llms = engine("demo", 1), engine("demo")
    logits = [record_logits(llm) for llm in llms]
    for index, (expected, actual) in enumerate(zip(*map(tokens, llms), strict=True)):
        differ = [i for i in range(len(expected)) if expected[i] != actual[i]]
        if differ:
            row = logits[0][str(index), differ[0]]
            gap = row[expected[differ[0]]] - row[actual[differ[0]]]
            assert gap < 2**-4 * np.sqrt(np.mean(row**2))
            assert differ[0] >= 16


@pytest.mark.slow
def test_large_messages_are_sent_in_chunks(folder):
    path = folder({**CONFIGS["llama"], **FORMATS["float32"], "max_position_embeddings": 2048})
    prompts = [[17 + position % 1000 for position in range(1000)]]
    options = {"max_num_batched_tokens": 1000}  # one step
    two = engine(path, **options)
    assert 1000 * two.runner.target.model.hidden_size * 4 > MAX_MESSAGE_BYTES
    outputs = tokens(two, prompts)
    assert list(map(len, outputs)) == [64]
    assert outputs == tokens(engine(path, 1, **options), prompts)


@pytest.mark.parametrize(
    "family",
    [
        name if name == "qwen3_moe" else pytest.param(name, marks=pytest.mark.slow)
        for name in CONFIGS
    ],
)
def test_family_tokens_match_one_rank(folder, family):
    path = folder({**CONFIGS[family], **FORMATS["float32"]})
    prompts = [[17, 5, 99], list(range(100, 140))]
    assert tokens(engine(path), prompts) == tokens(engine(path, 1), prompts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "weight_format"),
    [
        ("qwen2", "float32"),
        ("llama", "bfloat16"),
        ("llama", "4bit"),
        ("qwen3_moe", "float32"),
        ("qwen3_moe", "4bit"),
    ],
)
def test_logits_are_close_to_those_of_one_rank(folder, family, weight_format):
    # Splitting a sum of n products into parts changes it by n roundings, each at most u = 2⁻²⁴ of
    # the sum of magnitudes. With random signs, the roundings add up to √n of these, and the sum of
    # magnitudes is √n times the sum. Each of two layers has two split sums of at most 640 products;
    # the embedding's sum is exact. The bound in float32 is 4 · 2 · 640 · 2⁻²⁴ < 2⁻¹¹. In bfloat16,
    # each part and each sum is rounded with a relative error of 2⁻⁸: 4 · 3 · 2⁻⁸ < 2⁻⁴ of the
    # activations' magnitude, which the head preserves.
    path = folder({**CONFIGS[family], **FORMATS[weight_format]})
    bound = 2**-11 if weight_format == "float32" else 2**-4
    prompt, rows = list(range(300, 340)), []
    for size in (1, RANKS):
        llm = engine(path, size)
        logits = record_logits(llm)
        llm.generate([prompt], SamplingParams(temperature=0, max_tokens=1))
        rows.append(next(iter(logits.values())))
    scale = np.sqrt(np.mean(rows[0] ** 2))
    assert np.sqrt(np.mean((rows[0] - rows[1]) ** 2)) < bound * scale


@pytest.mark.slow
@pytest.mark.parametrize(
    "formats", [{}, {"kv_cache_dtype": "int8"}, {"activation_bits": 8}], ids=str
)
def test_bitwise_equal_for_any_batch_and_preemption(formats):
    few_pages = {"kv_cache_bytes": 2**20 * (1 if "kv_cache_dtype" in formats else 2)}
    few_pages["block_size"] = 16
    runs = [
        run_cases(engine("demo", **formats), [0, 1, 2, 3, 4]),
        run_cases(engine("demo", max_num_seqs=1, **formats), [4, 2, 0, 1, 3]),
        # Requests are preempted and resume with prefix cache hits.
        run_cases(engine("demo", **few_pages, **formats), [0, 1, 2, 3, 4], 2),
    ]
    for outputs, logits in runs[1:]:
        assert_same_outputs(outputs, logits, runs[0])
        assert logits.keys() == runs[0][1].keys()


@pytest.mark.slow
def test_recurrent_states_are_batch_invariant(tmp_path):
    path = str(write_hybrid(tmp_path / "model"))
    options = {"block_size": 4, "tensor_parallel_size": 2}
    plain = hybrid_engine(path, max_num_seqs=1, enable_prefix_caching=False, **options)
    batch = {"slots": 10, "max_num_seqs": 4, "speculative": "ngram"}
    runs = [
        run_cases(hybrid_engine(path, 96, **batch, **options), range(5), 2),  # preemptions
        # Hits the prefix cache.
        run_cases(hybrid_engine(path, 2048, **batch, **options), range(5), 2),
    ]
    reference = run_cases(plain, range(5))
    for run in runs:
        assert_same_outputs(*run, reference)
    assert sum(output.num_cached_tokens for output in runs[1][0].values()) > 0


@pytest.mark.slow
def test_draft_tokens_and_grammars_do_not_change_tokens():
    prompt = chat(PARAGRAPH * 2 + "Who is the mayor?")
    constraint = StructuredOutputs(json=TOWN_SCHEMA)
    json_params = SamplingParams(temperature=0, max_tokens=40, structured_outputs=constraint)
    plain, ngram = engine("demo"), engine("demo", speculative="ngram")
    assert tokens(ngram, [prompt]) == tokens(plain, [prompt])
    assert ngram.runner.statistics.num_accepted_tokens > 0
    [output] = plain.generate([prompt], json_params)
    assert json.loads(output.text)["of"] in TOWN_SCHEMA["properties"]["of"]["enum"]
    assert tokens(ngram, [prompt], json_params) == [list(output.token_ids)]
    with_draft_model = engine("demo", draft_model="demo-draft")
    assert tokens(with_draft_model, [prompt]) == tokens(plain, [prompt])


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "float16", "4bit"])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe"])
def test_shard_read_from_a_file_equals_the_slice(folder, family, kind):
    path = folder({**CONFIGS[family], **FORMATS.get(kind, {"torch_dtype": kind})})
    whole, stored = mx.load(str(path / "model.safetensors")), read_tensor_headers(path)
    config = read_config(json.loads((path / "config.json").read_text()))
    for part in [RankShard(config, 0, 2), RankShard(config, 1, 2)]:
        for name, tensor in stored.items():
            if part.is_zero_bias(name):
                continue  # rank 0 adds this bias; other ranks do not read it
            read, expected = part.read_tensor(name, tensor), part.slice_tensor(name, whole[name])
            assert (read.dtype, read.shape) == (expected.dtype, expected.shape), name
            assert mx.array_equal(read, expected), name


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs /proc/self/io")
def test_rank_reads_only_its_rows():
    def bytes_read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    def read_by(rank: int, size: int) -> int:
        before = bytes_read()
        load_weights("demo", rank=rank, num_ranks=size, with_tokenizer=False)
        return bytes_read() - before

    whole = read_by(0, 1)
    # A rank reads only its share of the tensors that are split by rows, 3.1 of 4.8 MB. Tensors that
    # are split by columns are read completely if their rows are short.
    assert read_by(0, 2) < 0.7 * whole
    assert read_by(1, 2) < 0.7 * whole


@pytest.mark.skipif(RANKS != 2, reason="the demo has two key/value heads")
def test_rank_holds_its_share_of_weights_and_pages():
    one, two = engine("demo", 1), engine("demo")
    whole = sum(layer.mlp.down_proj.weight.nbytes for layer in one.runner.target.model.layers)
    own = sum(block.block.mlp.down_proj.weight.nbytes for block in two.runner.target.model.layers)
    assert own * 2 == whole
    for llm in (one, two):
        llm.reserve()
    assert one.scheduler.config.num_pages == two.scheduler.config.num_pages
    assert two.runner.target.nbytes * 2 == one.runner.target.nbytes


# Prints each rank's anonymous memory in bytes when idle. (Shares of mapped libraries depend on how
# many other processes use them.)
PRINT_MEMORY = """
import json
import os
from pathlib import Path
from tests.parallel.support import ranks_of
from tiny_llm import LLM, SamplingParams
llm = LLM("demo", kv_cache_bytes=2**26, tensor_parallel_size=2)
llm.reserve()
llm.generate([list(range(40, 140))], SamplingParams(max_tokens=8))
pids = [os.getpid(), *ranks_of(os.getpid())]
rolls = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
print(json.dumps([1024 * int(roll.partition("\\nAnonymous:")[2].split()[0]) for roll in rolls]))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs smaps_rollup")
def test_rank_memory_is_about_half_of_the_total():
    """Margins cover the ring (25 MB), not NumPy (20 MB) or a vocabulary (30 MB)."""
    done = subprocess.run(
        [sys.executable, "-c", PRINT_MEMORY],
        # without the emulator, which imports NumPy
        env={**os.environ, "TINY_LLM_EMULATED_METAL": "0"},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    ranks = json.loads(done.stdout)
    whole = (TARGET_PATH / "model.safetensors").stat().st_size + 2**26
    rank_0, worker = ranks
    assert rank_0 < whole / 2 + 70e6, ranks
    assert worker < whole / 2 + 60e6, ranks


@pytest.mark.slow
def test_ranks_release_scratch_when_idle():
    for size, keeps_scratch in ((1, True), (RANKS, False)):
        llm = engine("demo", size)
        tokens(llm)
        assert (mx.get_cache_memory() > 0) == keeps_scratch


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 3, "num_key_value_heads": 3}, "num_attention_heads, 3, cannot"),
        ({"intermediate_size": 255}, "intermediate_size, 255, cannot"),
        ({"num_attention_heads": 12, "num_key_value_heads": 3}, "num_key_value_heads, 3, cannot"),
    ],
)
def test_indivisible_sizes_are_rejected(folder, changes, message):
    path = folder({**CONFIGS["llama"], "head_dim": 32, "hidden_size": 192, **changes})
    with pytest.raises(UserError, match=message):
        engine(path)


def test_features_are_split_by_whole_groups():
    config = read_config({**CONFIGS["llama"], "intermediate_size": 5 * 128})
    parts = [RankShard(config, rank, 4) for rank in range(4)]
    assert [part.config.intermediate_size for part in parts] == [128, 128, 128, 256]
    groups = mx.arange(3 * 5).reshape(3, 5)
    slices = [part.slice_tensor("model.layers.0.mlp.down_proj.scales", groups) for part in parts]
    assert np.array_equal(as_numpy(mx.concatenate(slices, 1)), as_numpy(groups))


def test_quantization_groups_are_not_split(folder):
    # All 4 heads share one quantization group.
    path = folder({**CONFIGS["llama"], **FORMATS["4bit"], "head_dim": 16})
    with pytest.raises(UserError, match=rf"o_proj.\w+ cannot be split among {RANKS} ranks"):
        engine(path)


def test_other_group_sizes_are_rejected(demo):
    engine("demo")
    with pytest.raises(UserError, match=f"this process already has a group of {RANKS} ranks"):
        engine("demo", 6 - RANKS)
    with pytest.raises(UserError, match="does not support a loaded model"):
        LLM(demo, tensor_parallel_size=2)
    with pytest.raises(UserError, match="tensor_parallel_size must be at least 1, got 0"):
        engine("demo", 0)
