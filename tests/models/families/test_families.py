"""Model families in the engine's decoder: paths with equal bits, experts, dummy weights."""

import json

import mlx.core as mx
import pytest

from tests.models.support import (
    FAMILIES,
    GEMMA4,
    GEMMA4_MIXTURE,
    HYBRID,
    HYBRID_MIXTURE,
    MIXTURE,
    name_of,
    run_changing_batch,
    run_ragged,
    run_sequence,
    sequence_logits,
    write_checkpoint,
)
from tests.ops.captured_functions import node_names
from tests.support import assert_close, assert_same_bits, random, use_device
from tiny_llm import (
    LLM,
    ModelError,
    Qwen3ModelWeek3,
    SamplingParams,
    UserError,
    kernels,
    load_weights,
)
from tiny_llm.generate import dispatch_model
from tiny_llm.models.checkpoint.dummy import random_checkpoint, random_tensors
from tiny_llm.models.checkpoint.weights import read_checkpoint
from tiny_llm.models.families.decoder import Decoder
from tiny_llm.models.families.experts import GatheredExperts, GroupedExperts, SeparateExperts
from tiny_llm.models.loading import load, serving_model

QUANTIZED = {"bits": 4, "group_size": 64}
WINDOW = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0}
LLAMA = FAMILIES["llama"]
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


def test_unsupported_field_is_rejected_by_every_loader(tmp_path, demo):
    write_checkpoint(tmp_path, {**LLAMA, "logit_scale": 2.0}, random_tensors(LLAMA)[0])
    (tmp_path / "tokenizer.json").write_text("{}")
    message = "cannot be loaded: config.json has logit_scale 2.0, which scales"
    for load_either in (load, load_weights):
        with pytest.raises(ModelError, match=message):
            load_either(str(tmp_path))


def test_decoder_matches_week_3_bitwise(demo):
    mlx_model, tokenizer = demo
    ids = tokenizer.encode("What is the capital of France?")
    ends = [len(ids) - 1, len(ids)]
    week_3, decoder = (
        sequence_logits(make(mlx_model, page_size=8), ids, ends)
        for make in (Qwen3ModelWeek3, Decoder)
    )
    assert_same_bits(decoder, week_3, "Decoder compared with Qwen3ModelWeek3")


@pytest.mark.parametrize("run", [run_sequence, run_changing_batch, run_ragged])
@pytest.mark.parametrize(
    "config",
    [LLAMA, FAMILIES["qwen2"], MIXTURE, HYBRID, HYBRID_MIXTURE, GEMMA4, GEMMA4_MIXTURE],
    ids=name_of,
)
def test_captured_steps_are_bitwise_equal_to_eager_steps(config, run, monkeypatch):
    config = {**config, "quantization": {"bits": 3, "group_size": 64}}
    model = serving_model("it", random_checkpoint(config), page_size=16)
    runs = [run(model) for _ in range(3)]
    monkeypatch.setattr("tiny_llm.kernels.graph_capture.MAX_CAPTURE_TOKENS", 0)
    expected = run(model)
    for actual in runs:
        assert_same_bits(actual, expected, "captured compared with eager")


@pytest.mark.parametrize("either_device", ["gpu"], indirect=True)
@pytest.mark.parametrize(
    "config",
    [
        *(FAMILIES[name] for name in ("llama", "gemma3_text", "gpt_oss")),
        # All six experts are selected, so rounding cannot change the selection.
        {**HYBRID_MIXTURE, "num_experts_per_tok": 6},
        GEMMA4,
        # Kernels of the families above, in other combinations.
        *(
            pytest.param(config, marks=pytest.mark.slow)
            for config in (
                *(FAMILIES[name] for name in ("qwen3", "qwen2", "smollm3", "granite")),
                FAMILIES["ministral3"],
                *(MIXTURE, HYBRID, {**GEMMA4_MIXTURE, "top_k_experts": 6}),
            )
        ),
    ],
    ids=name_of,
)
def test_gpu_matches_cpu(either_device, config):
    def logits():
        checkpoint = random_checkpoint({**config, "quantization": QUANTIZED})
        return run_ragged(serving_model("it", checkpoint, page_size=16))

    with use_device("cpu"):
        expected = logits()
    assert_close(logits(), expected, f"{name_of(config)} on a GPU", ulps=16)


@pytest.mark.parametrize(
    "config",
    [*FAMILIES.values(), MIXTURE, HYBRID, HYBRID_MIXTURE, GEMMA4, GEMMA4_MIXTURE],
    ids=name_of,
)
def test_decoder_layers_are_one_graph_node(config):
    config = {**config, "quantization": {"mode": "mxfp4"}}
    model = serving_model("it", random_checkpoint(config), page_size=16)
    run_ragged(model)
    run_ragged(model)
    layers, nodes = model._run_planned, []

    def record_nodes(x, cos_sin, places):
        mx.eval(x, cos_sin)
        outputs = layers(x, cos_sin, places)
        nodes.append(node_names(outputs))
        return outputs

    model._run_planned = record_nodes
    run_ragged(model)
    assert all(names[-1:] == ["TinyLlmReplay"] and len(names) < 3 for names in nodes), nodes


@pytest.mark.parametrize(
    ("family", "quantization"),
    [
        ("qwen2", {"bits": 6, "group_size": 64}),
        ("llama", QUANTIZED),
        ("ministral3", {"mode": "nvfp4"}),
        ("llama", None),
        ("qwen3_moe", QUANTIZED),
        ("gemma4", QUANTIZED),
        ("gemma4_moe", QUANTIZED),
        ("gemma3_text", QUANTIZED),
        ("smollm3", None),
        ("granite", QUANTIZED),
        ("gpt_oss", {"mode": "mxfp4", "model.embed_tokens": False}),
    ],
)
def test_tokens_do_not_depend_on_batch_drafts_or_chunks(demo, family, quantization):
    others = {"qwen3_moe": MIXTURE, "gemma4": GEMMA4, "gemma4_moe": GEMMA4_MIXTURE}
    config = {**FAMILIES, **others}[family]
    config = {**config, "quantization": quantization, "tie_word_embeddings": False}
    pair = random_checkpoint(config), demo[1]
    draft = FAMILIES["llama"] if family.startswith("gemma4") else config
    small = random_checkpoint({**draft, "num_hidden_layers": 1}), demo[1]
    params = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    prompts = [[(7 * i + s) % 211 for i in range(n)] for s, n in enumerate((40, 3, 40, 21))]
    prompts.append(prompts[0])

    def generate(batch, **options):
        outputs = LLM(pair, block_size=16, **options).generate(batch, params, use_tqdm=False)
        assert not [output.error for output in outputs if output.error]
        preemptions.append(sum(output.metrics.num_preemptions for output in outputs))
        return [output.token_ids for output in outputs]

    preemptions: list[int] = []
    alone = [generate([prompt])[0] for prompt in prompts]
    assert generate(prompts) == alone
    assert generate(prompts, enable_prefix_caching=False) == alone
    assert generate(prompts, max_num_batched_tokens=7, max_num_seqs=4) == alone
    assert generate(prompts, draft_model=small, num_drafts=3) == alone
    assert generate(prompts, speculative="ngram") == alone
    token_bytes = serving_model(family, pair[0], page_size=16).kv_bytes_per_token
    assert generate(prompts, kv_cache_bytes=80 * token_bytes) == alone
    assert preemptions[-1] > 0
    int8 = {"kv_cache_dtype": "int8", "enable_prefix_caching": False}
    alone = [generate([prompt], **int8)[0] for prompt in prompts]
    assert generate(prompts, max_num_batched_tokens=7, max_num_seqs=4, **int8) == alone


@pytest.mark.parametrize("tokens", [1, 7, 50])
@pytest.mark.parametrize("quantization", [None, QUANTIZED, {"mode": "mxfp4"}], ids=str)
def test_stacked_experts_match_separate_experts(quantization, tokens):
    config = {**MIXTURE, "quantization": quantization, "torch_dtype": "float32"}
    stacked = random_checkpoint(config).layers[1].mlp.switch_mlp
    x, experts = random(1, tokens, 128), mx.random.randint(0, 6, (1, tokens, 2))
    separate = SeparateExperts(stacked, mx.float32)
    assert_close(GatheredExperts(stacked)(x, experts), separate(x, experts), "gathered", ulps=64)
    for way in (separate, GatheredExperts(stacked)):
        assert way(x[:, :0], experts[:, :0]).shape == (1, 0, 2, 128)


@pytest.mark.parametrize("quantization", [QUANTIZED, {"bits": 6}, {"mode": "mxfp4"}], ids=str)
def test_grouped_experts_are_bitwise_equal_to_separate_experts_and_single_tokens(quantization):
    mixture = random_checkpoint({**MIXTURE, "quantization": quantization})
    layer, given = serving_model("it", mixture, page_size=16).layers[1].mlp, mixture.layers[1].mlp
    assert isinstance(layer.experts, GroupedExperts)
    x = random(2, 20, 128, dtype=mx.bfloat16)
    experts, routing_weights = layer.route(x)
    assert_close(routing_weights.sum(axis=-1), mx.ones((2, 20)), "normalized routing weights")
    separate = SeparateExperts(given.switch_mlp, mx.bfloat16)
    assert_same_bits(
        layer.experts(x, experts), separate(x, experts), "grouped compared with separate experts"
    )
    together = layer(x)
    for row, token in ((0, 0), (0, 7), (1, 19)):
        alone = layer(x[row : row + 1, token : token + 1])
        assert_same_bits(alone[0, 0], together[row, token], f"token {token} of row {row}")
    assert layer(x[:, :0]).shape == (2, 0, 128)


def test_experts_are_prepacked_if_supported():
    rows = kernels.prepack_rows()
    if not rows:
        pytest.skip("needs kernels that read prepacked weights")
    config = {**MIXTURE, "quantization": {"mode": "mxfp4"}}
    layer = serving_model("it", random_checkpoint(config), page_size=16).layers[0].mlp
    assert layer.experts.up.weight.weight.shape == (6, 64 // rows, 16, rows)
    assert layer.experts.down.weight.scales.shape == (6, 128 // rows, 2, rows)


def test_missing_expert_is_named(tmp_path):
    weights, _ = random_tensors(MIXTURE)
    for name in [name for name in weights if ".switch_mlp." in name]:
        for index, own in enumerate(weights.pop(name)):
            weights[name.replace("switch_mlp", f"experts.{index}")] = own
    del weights["model.layers.1.mlp.experts.3.up_proj.weight"]
    write_checkpoint(tmp_path, MIXTURE, weights)
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.switch_mlp\.up_proj.weight is missing"):
        read_checkpoint(tmp_path, MIXTURE)


@pytest.mark.parametrize("week", [1, 2, 3])
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (LLAMA, "is a model of type 'llama'"),
        ({**FAMILIES["qwen3"], "attention_bias": True}, "has biases in its attention"),
        ({**FAMILIES["qwen3"], "rope_scaling": YARN}, "scales RoPE with 'yarn'"),
        ({**FAMILIES["qwen3"], **WINDOW}, "has a sliding window of 64 tokens"),
    ],
)
def test_weeks_support_only_qwen3(config, reason, week):
    fix = "which the course's layers do not implement; use LLM, or .* --loader engine"
    with pytest.raises(ModelError, match=f"{reason}, {fix}"):
        dispatch_model("it", random_checkpoint(config), week)


def test_dummy_weights_need_only_a_config(tmp_path, capsys):
    config = {**LLAMA, "vocab_size": 9000, "quantization": QUANTIZED}
    (tmp_path / "config.json").write_text(json.dumps(config))
    llm = LLM(str(tmp_path), load_format="dummy", block_size=16)
    expected = "has no tokenizer; using the demo model's with the random weights."
    assert expected in capsys.readouterr().err
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    [output] = llm.generate(["RoPE is"], params, use_tqdm=False)
    assert len(output.token_ids) == 5
    logits = sequence_logits(llm.runner.target.model, [1, 2, 3])
    assert 0.3 < float(mx.std(logits.astype(mx.float32))) < 3  # about unit variance


def test_dummy_weights_are_rejected_where_unsupported(tmp_path):
    with pytest.raises(UserError, match="load_format must be 'auto' or 'dummy', got 'ggml'"):
        load_weights("demo", load_format="ggml")
    for changes, message in (
        ({}, "vocab_size, 211, is too small for the demo"),
        ({"torch_dtype": "float8"}, "dtype 'float8', expected one of bfloat16, float16"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **changes}))
        with pytest.raises(ModelError, match=message):
            load_weights(str(tmp_path), load_format="dummy")
