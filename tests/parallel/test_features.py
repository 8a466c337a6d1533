"""Prefix cache on disk, LoRA adapters and MTP on two ranks."""

import signal

import mlx.core as mx
import numpy as np
import pytest

from tests.engine.disk_cache.support import GREEDY, PROMPT, engine, generate_one, page_files
from tests.engine.hybrid import CONFIG as HYBRID
from tests.engine.hybrid import build, write_hybrid
from tests.engine.spec_decode.test_mtp import record_drafts, write_predictable
from tests.engine.support import CASES, assert_same_outputs, run_alone, run_cases
from tests.models.lora_adapters.support import random_adapter, write_adapter, write_adapters
from tests.models.support import FAMILIES, MIXTURE
from tests.parallel.test_tensor_parallel import CONFIGS, FORMATS, folder, tokens
from tests.support import as_numpy
from tiny_llm import LLM, ModelError, SamplingParams, load_weights
from tiny_llm.demo import TARGET_PATH
from tiny_llm.engine.execution import tp_model
from tiny_llm.engine.execution.paged_model import PagedModel
from tiny_llm.kv_storage.page_store import HEADER_BYTES
from tiny_llm.models.checkpoint.layout import read_model_config
from tiny_llm.models.checkpoint.sharding import RankShard
from tiny_llm.models.families.registry import read_config
from tiny_llm.models.lora_adapters import read_adapter

__all__ = ["folder"]  # a fixture, imported so that pytest finds it

TWO = {"tensor_parallel_size": 2}
FLOAT32 = {"torch_dtype": "float32"}
ADAPTERS = {"a": 5, "b": 3}  # ranks
LORAS = {0: "a", 1: None, 2: "b", 3: "a", 4: "b"}


@pytest.mark.slow
def test_page_file_has_all_ranks_shards(tmp_path):
    cold = generate_one(LLM("demo", enable_prefix_caching=False, **TWO))
    for run_index in range(2):
        with engine(tmp_path, "demo", **TWO) as llm:
            for _ in range(2):  # the second request hits the prefix cache in memory
                output = generate_one(llm)
                assert (output.token_ids, output.logprobs) == (cold.token_ids, cold.logprobs)
            assert (llm.disk_cache.stats.hit_tokens > 0) == (run_index > 0)
            page_bytes = llm.runner.target.model.kv_bytes_per_token * 32
    files = page_files(tmp_path)
    assert {path.stat().st_size for path in files} == {HEADER_BYTES + page_bytes}
    # One rank rounds differently than two, so it must not load their pages.
    with engine(tmp_path, "demo") as llm:
        assert generate_one(llm).num_cached_tokens == 0


@pytest.mark.slow
def test_damaged_shard_of_either_rank_is_a_miss(tmp_path):
    with engine(tmp_path, "demo", **TWO) as llm:
        cold = generate_one(llm)
    for share in (0.25, 0.75):  # a byte in rank 0's shard, then one in rank 1's shard
        for path in page_files(tmp_path):
            data = bytearray(path.read_bytes())
            data[int(share * len(data))] ^= 1
            path.write_bytes(data)
        with engine(tmp_path, "demo", **TWO) as llm:
            output = generate_one(llm)
            assert (output.token_ids, output.num_cached_tokens) == (cold.token_ids, 0)
            assert llm.disk_cache.stats.num_errors > 0


@pytest.mark.slow
def test_recurrent_states_from_disk(tmp_path):
    model = str(write_hybrid(tmp_path / "model"))
    expected = run_cases(build(model, enable_prefix_caching=False, **TWO), range(len(CASES)))
    for run_index in range(2):
        with engine(tmp_path, model, build=build, slots=20, **TWO) as llm:
            assert_same_outputs(*run_cases(llm, range(len(CASES))), expected)
            assert (llm.disk_cache.stats.hit_tokens > 0) == (run_index > 0)


@pytest.mark.slow
def test_ctrl_c_in_a_call_keeps_the_ranks_in_sync(tmp_path, monkeypatch):
    with engine(tmp_path, "demo", **TWO) as llm:
        expected = generate_one(llm)
    for name in ("logits", "write_rows", "read_row"):
        call = getattr(PagedModel, name)

        def interrupted(*args, call=call):
            signal.raise_signal(signal.SIGINT)  # interrupts rank 0 while the workers compute
            return call(*args)

        with engine(tmp_path, "demo", **TWO) as llm:
            monkeypatch.setattr(PagedModel, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                generate_one(llm, f"Other. {PROMPT}" if name == "read_row" else PROMPT)
            monkeypatch.undo()
            assert generate_one(llm).token_ids == expected.token_ids


@pytest.mark.parametrize(
    "family",
    [
        name if name == "qwen3_moe" else pytest.param(name, marks=pytest.mark.slow)
        for name in (*FAMILIES, "qwen3_moe", "hybrid")
    ],
)
def test_adapted_tokens_match_one_rank(tmp_path, folder, family):
    if family == "hybrid":
        config = {**HYBRID, **FLOAT32}
        path = write_hybrid(tmp_path / "model", **FLOAT32)
    else:
        config = {**CONFIGS[family], **FORMATS["float32"]}
        path = folder(config)
    # Granite's embeddings are multiplied by 12, and the updates that adapters change by 0.22.
    size = 3 if family == "granite" else 0.3
    modules = write_adapters(tmp_path, config, ADAPTERS, size)
    prompts = [[17, 5, 99], list(range(100, 140))] * 2
    outputs = []
    for options in ({}, TWO):
        llm = LLM(str(path), kv_cache_bytes=2**24, lora_modules=modules, **options)
        greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
        loras = ["a", "b", "b", None]
        outputs.append([o.token_ids for o in llm.generate(prompts, greedy, lora=loras)])
    assert outputs[0] == outputs[1]
    assert len(set(map(tuple, outputs[0]))) == 4


@pytest.mark.slow
def test_adapters_in_one_batch(tmp_path):
    """Requests with different adapters get the same results batched as alone."""
    modules = write_adapters(tmp_path, read_model_config(TARGET_PATH), ADAPTERS, 0.3)

    def make_llm(case: int) -> LLM:
        lora = LORAS[case]
        module = {lora: modules[lora]} if lora else None
        return LLM("demo", lora_modules=module, enable_prefix_caching=False, **TWO)

    reference = run_alone(make_llm, loras=LORAS)
    llm = LLM("demo", lora_modules=modules, block_size=8, **TWO)
    assert_same_outputs(*run_cases(llm, range(len(CASES)), 1, loras=LORAS), reference)
    again = run_cases(llm, range(len(CASES))[::-1], 30, loras=LORAS)  # one request at a time
    assert_same_outputs(*again, reference)
    assert sum(output.num_cached_tokens for output in again[0].values()) > 0


@pytest.mark.parametrize(
    "config", [FAMILIES["llama"], MIXTURE, HYBRID], ids=["llama", "moe", "hybrid"]
)
def test_adapter_shards_concatenate_to_the_whole(tmp_path, config):
    model = read_config(config)
    path = str(write_adapter(tmp_path / "a", random_adapter(config, 4), 4))
    full = read_adapter(path, model, mx.float32)
    ranks = [RankShard(model, rank, 2) for rank in range(2)]
    shards = [read_adapter(path, model, mx.float32, rank) for rank in ranks]
    num_split = 0
    for layer, matrices in full.items():
        for kind in "ab":
            whole = as_numpy(getattr(matrices, kind))
            parts = [as_numpy(getattr(shard[layer], kind)) for shard in shards]
            if parts[0].shape == whole.shape:
                assert all(np.array_equal(part, whole) for part in parts), layer
                continue
            assert (kind == "a") == layer.endswith(("o_proj", "down_proj", "out_proj")), layer
            # Compared as sorted columns, because sharding permutes those of in_proj_qkv.
            columns = np.concatenate(parts, axis=1).T
            assert sorted(columns.tolist()) == sorted(whole.T.tolist()), layer
            num_split += 1
    replicated = [layer for layer in full if layer.endswith(("mlp.gate", "shared_expert_gate"))]
    assert num_split == len(full) - len(replicated)


def test_adapter_missing_on_another_rank(monkeypatch):
    monkeypatch.setattr(tp_model, "attach_adapters", lambda *args: None)  # on rank 0 only
    with pytest.raises(ModelError, match="is not a folder"):
        LLM("demo", lora_modules={"a": "/missing"}, **TWO)
    monkeypatch.undo()
    assert generate_one(LLM("demo", **TWO)).token_ids  # the rank group is still usable


@pytest.mark.parametrize(
    "changes",
    [{"tie_word_embeddings": False}, pytest.param({}, marks=pytest.mark.slow)],
    ids=["untied", "tied"],
)
def test_mtp_drafts_are_those_of_one_rank(tmp_path, changes):
    path = str(write_hybrid(tmp_path / "model", mtp=True, **FLOAT32, **changes))
    params = SamplingParams(temperature=0.5, seed=3, max_tokens=30, ignore_eos=True)
    prompts = [[5], list(range(100, 131)), list(range(300, 321))]
    results = []
    for options in ({}, TWO):
        llm = LLM(path, speculative="mtp", num_drafts=2, kv_cache_bytes=2**22, **options)
        recorded = record_drafts(llm)
        results.append((tokens(llm, prompts, params), [drafts for _, drafts, _ in recorded]))
    assert results[0] == results[1]
    assert len(results[1][1]) > 50
    [page_bytes, layer_bytes] = [model.row_bytes("page") for model in llm.runner.models]
    assert page_bytes == layer_bytes == 32 * llm.runner.draft.model.model.kv_bytes_per_token
    assert tokens(LLM(path, kv_cache_bytes=2**22, **TWO), prompts, params) == results[1][0]


@pytest.mark.slow
def test_all_features_together(tmp_path):
    path = write_predictable(tmp_path / "model", noise=0.1)
    modules = write_adapters(tmp_path, {**HYBRID, **FLOAT32}, ADAPTERS, 0.3)
    loras, prompts = [None, "a", "b"], [PROMPT] * 3
    plain = LLM(path, lora_modules=modules, **TWO).generate(prompts, GREEDY, lora=loras)
    for run_index in range(2):
        options = {"speculative": "mtp", "num_drafts": 2, "lora_modules": modules, **TWO}
        with engine(tmp_path, path, **options) as llm:
            outputs = llm.generate(prompts, GREEDY, lora=loras)
            for output, expected in zip(outputs, plain, strict=True):
                assert output.token_ids == expected.token_ids
                assert output.logprobs == expected.logprobs
            assert (llm.disk_cache.stats.hit_tokens > 0) == (run_index > 0)
            assert llm.runner.statistics.num_accepted_tokens > 0


def test_mtp_layer_must_be_loaded(tmp_path):
    path = str(write_hybrid(tmp_path / "model"))
    with pytest.raises(ModelError, match=r"it has no mtp\.\* tensors"):
        LLM(path, speculative="mtp", **TWO)
    with pytest.raises(ModelError, match="has no multi-token prediction layer"):
        LLM("demo", speculative="mtp", **TWO)
    assert load_weights(path, with_tokenizer=False, rank=1, num_ranks=2)[0].args.has_mtp is False
