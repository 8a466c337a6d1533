"""Hybrid families: configs, state slots, quantization, shards."""

import json
from array import array

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from tests.models.support import HYBRID, HYBRID_MIXTURE, sequence_logits, write_family
from tests.support import as_numpy, assert_close, assert_same_bits
from tiny_llm import ModelError, load_weights
from tiny_llm.demo import TARGET_PATH
from tiny_llm.engine.execution.paged_model import PagedModel, Span
from tiny_llm.generate import dispatch_model
from tiny_llm.models.checkpoint.dummy import random_checkpoint, random_tensors
from tiny_llm.models.checkpoint.layout import read_model_config, read_tensor_headers
from tiny_llm.models.checkpoint.sharding import RankShard
from tiny_llm.models.checkpoint.weights import read_checkpoint
from tiny_llm.models.families.registry import read_config
from tiny_llm.models.serving_model import serving_model

NESTED = {
    "model_type": "qwen3_5",
    "text_config": HYBRID,
    "vision_config": {"depth": 2},
    "image_token_id": 5,
    "tie_word_embeddings": True,
}
ROPE = HYBRID["rope_parameters"]
MROPE = {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
TYPES = ["linear_attention", "full_attention"]


def without(config, *names):
    return {name: value for name, value in config.items() if name not in names}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (HYBRID, {"rotary_dim": 8, "attn_output_gate": True, "num_kv_layers": 2}),
        ({**NESTED, "hidden_size": 64}, {"model_type": "qwen3_5", "hidden_size": 128}),
        ({**HYBRID, "rope_parameters": {**ROPE, **MROPE}}, {"rope_scaling": None}),
        ({**HYBRID, "rope_parameters": {**ROPE, "partial_rotary_factor": 1}}, {"rotary_dim": None}),
        (
            {**without(HYBRID, "rope_parameters"), "partial_rotary_factor": 0.5},
            {"rotary_dim": 16, "rope_theta": 10000.0},
        ),
        (without(HYBRID, "rope_parameters"), {"rotary_dim": 8}),
        ({**HYBRID, "layer_types": [*TYPES, *TYPES[::-1]]}, {"num_kv_layers": 2}),
        ({**HYBRID, "full_attention_interval": None}, {"num_kv_layers": 1}),
        # transformers writes the text config's default
        ({**NESTED, "tie_word_embeddings": False}, {"tie_word_embeddings": False}),
        (
            {**HYBRID, "use_sliding_window": True, "num_experts": 4, "text_config": HYBRID},
            {"ignored_fields": ("use_sliding_window", "num_experts", "text_config")},
        ),
        ({**HYBRID, "mtp_num_hidden_layers": 1, "output_gate_type": "swish"}, {}),
        (HYBRID_MIXTURE, {"intermediate_size": 64}),
    ],
)
def test_config_parsing(config, expected):
    parsed = read_config(config)
    assert {name: getattr(parsed, name) for name in expected} == expected


# Configs of published checkpoints: Qwen3-Next-80B-A3B, and Qwen3.5-4B with Qwen3.8's new fields.
QWEN3_5 = {
    "architectures": ["Qwen3_5ForConditionalGeneration"],
    "image_token_id": 248056,
    "model_type": "qwen3_5",
    "text_config": {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_output_gate": True,
        "bos_token_id": 248044,
        "dtype": "bfloat16",
        "eos_token_id": 248044,
        "full_attention_interval": 4,
        "head_dim": 256,
        "hidden_act": "silu",
        "hidden_size": 2560,
        "initializer_range": 0.02,
        "intermediate_size": 9216,
        "layer_types": [*["linear_attention"] * 3, "full_attention"] * 8,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
        "mlp_only_layers": [],
        "model_type": "qwen3_5_text",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": 16,
        "num_hidden_layers": 32,
        "num_key_value_heads": 4,
        "output_gate_type": "swish",
        "pad_token_id": None,
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000,
            "rope_type": "default",
        },
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": 248320,
    },
    "tie_word_embeddings": True,
    "transformers_version": "5.2.0",
    "unsloth_fixed_mtp": True,
    "video_token_id": 248057,
    "vision_config": {"depth": 24, "model_type": "qwen3_5"},
    "vision_end_token_id": 248054,
    "vision_start_token_id": 248053,
}
QWEN3_NEXT = {
    **without(QWEN3_5["text_config"], "layer_types", "rope_parameters", "output_gate_type"),
    "model_type": "qwen3_next",
    "rope_scaling": None,
    "rope_theta": 10000000,
    "use_sliding_window": False,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 512,
}


@pytest.mark.parametrize("config", [QWEN3_5, QWEN3_NEXT], ids=["qwen3_5", "qwen3_next"])
def test_published_configs(config):
    parsed = read_config(config)
    assert (parsed.rotary_dim, parsed.rope_theta, parsed.num_kv_layers) == (64, 1e7, 8)
    assert parsed.delta_net.conv_channels == 8192
    assert parsed.tie_word_embeddings
    assert parsed.experts is None or len(parsed.experts.layers) == 32


def test_layers_and_experts():
    net = read_config({**HYBRID, "layer_types": [*TYPES, *TYPES[::-1]]}).delta_net
    assert net.layers == (0, 3)
    assert (net.key_dim, net.value_dim, net.conv_channels) == (48, 128, 224)
    experts = read_config(HYBRID_MIXTURE).experts
    assert (experts.norm_topk_prob, experts.shared_expert_intermediate_size) == (True, 128)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**HYBRID, "linear_num_value_heads": 3}, "linear_num_value_heads 3, expected a multiple"),
        ({**HYBRID, "linear_num_key_heads": 0}, "linear_num_key_heads 0, expected a positive"),
        (without(HYBRID, "linear_key_head_dim"), "has no linear_key_head_dim"),
        (
            {**HYBRID, "linear_value_head_dim": 512},
            "linear_value_head_dim 512, expected at most 25",
        ),
        ({**HYBRID, "num_hidden_layers": 2**31 - 1}, "num_hidden_layers 2147483647, expected at m"),
        ({**HYBRID, "linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim 1, expected 2 to 8"),
        ({**HYBRID, "linear_conv_kernel_dim": 9}, "linear_conv_kernel_dim 9, expected 2 to 8"),
        ({**HYBRID, "layer_types": TYPES}, "layer_types .*, expected 4 entries"),
        ({**HYBRID, "layer_types": ["linear_attention"] * 4}, "at least one of each"),
        ({**HYBRID, "layer_types": [[], *TYPES, "x"]}, "expected 4 entries"),
        ({**HYBRID, "layer_types": "linear"}, "layer_types 'linear', expected 4 entries"),
        ({**HYBRID, "full_attention_interval": 5}, "layer_types .*at least one of each"),
        ({**HYBRID, "full_attention_interval": 0}, "full_attention_interval 0, expected a pos"),
        ({**HYBRID, "output_gate_type": "sigmoid"}, "output_gate_type 'sigmoid', expected 'silu'"),
        (
            {**HYBRID, "partial_rotary_factor": 2, "rope_parameters": None},
            "partial_rotary_factor 2",
        ),
        (
            {**HYBRID, "rope_parameters": {"partial_rotary_factor": 0.1}},
            "partial_rotary_factor 0.1 and head_dim 32; their product must be an even number",
        ),
        (without(HYBRID_MIXTURE, "shared_expert_intermediate_size"), "no shared_expert_intermedia"),
        ({**NESTED, "text_config": 3}, "text_config 3, expected an object"),
        (
            {**NESTED, "text_config": {**HYBRID, "model_type": "llama"}},
            "model_type 'llama' in text_config",
        ),
        (
            {**NESTED, "text_config": {**HYBRID, "logit_scale": 2}},
            "has logit_scale 2, which scales",
        ),
    ],
)
def test_invalid_config_is_rejected(config, message):
    with pytest.raises(ValueError, match=message):
        read_config(config)


def model_of(config, page_size=16, **changes):
    return serving_model("it", random_checkpoint({**config, **changes}), page_size)


IDS = [(7 * i) % 211 for i in range(70)]
FORMATS = {
    "float32": {"torch_dtype": "float32"},
    "float16": {"torch_dtype": "float16"},
    "bfloat16": {},
    "4bit": {"quantization": {"bits": 4, "group_size": 32}},
}


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("config", [HYBRID, HYBRID_MIXTURE], ids=["dense", "moe"])
def test_logits_are_chunk_invariant(config, form):
    model = model_of(config, **FORMATS[form])
    whole = sequence_logits(model, IDS)
    for ends in ([1, 2, 5, 40, 70], [33, *range(34, 71)]):
        assert_same_bits(sequence_logits(model, IDS, ends), whole, f"chunks ending at {ends}")


def run_span(paged, ids, start, read, writes):
    span = Span(ids, start, array("i", range(8)), read, writes)
    return paged.logits([span], range(len(ids)))


@pytest.mark.usefixtures("on_cpu")
def test_decoding_continues_from_the_state_of_any_token():
    """Decoding continues from the last draft token that was accepted."""
    paged = PagedModel(model_of(HYBRID), 8, 12)
    whole = run_span(paged, IDS[:20], 0, -1, [(19, 0)])
    mx.eval(whole)
    run_span(paged, IDS[:10], 0, -1, [(9, 0)])
    # In-place update: reads slot 0 and writes slots 0 to 9, one per token.
    tail = run_span(paged, IDS[10:20], 10, 0, [(i, i) for i in range(10)])
    assert_same_bits(tail, whole[10:], "tail")
    for accepted in (9, 4, 0):
        start = 10 + accepted + 1
        if start < 20:
            again = run_span(paged, IDS[start:20], start, accepted, [(19 - start, 11)])
            assert_same_bits(again, whole[start:], f"after {accepted} tokens")


@pytest.mark.usefixtures("on_cpu")
def test_read_slot_is_unchanged_unless_written():
    """Several requests may continue from the checkpoint in a read slot."""
    paged = PagedModel(model_of(HYBRID), 8, 3)
    run_span(paged, IDS[:10], 0, -1, [(9, 2)])
    first = run_span(paged, IDS[10:20], 10, 2, [(9, 0)])
    assert not mx.array_equal(first, run_span(paged, IDS[30:40], 10, 2, [(9, 1)]))
    assert_same_bits(run_span(paged, IDS[10:20], 10, 2, []), first, "again")


def test_storage_has_the_declared_bytes():
    model = model_of(HYBRID, torch_dtype="bfloat16")
    # Per layer: a convolution state of 3×224 bfloat16 and a recurrent state of 4×24×32 float32.
    assert model.state_bytes == 2 * (3 * 224 * 2 + 4 * 24 * 32 * 4)
    assert model.kv_bytes_per_token == 2 * 2 * 2 * 32 * 2
    paged = PagedModel(model, 8, 7)
    run_span(paged, IDS[:3], 0, -1, [(2, 5)])
    assert paged._storage.states.nbytes == model.state_bytes
    paged.populate(8, 7)
    assert paged.nbytes == 8 * 16 * model.kv_bytes_per_token + 7 * model.state_bytes
    with pytest.raises(ValueError, match="num_slots must be at least 1, got 0"):
        model.create_paged_storage(8)


QUANTIZATIONS = {
    "3 bits": {"bits": 3, "group_size": 64},
    "4 bits": {"bits": 4, "group_size": 64},
    "6 bits": {"bits": 6, "group_size": 32},
    "8 bits": {"bits": 8, "group_size": 64},
    "mxfp4": {"mode": "mxfp4", "bits": 4, "group_size": 32},
    "mxfp8": {"mode": "mxfp8", "bits": 8, "group_size": 32},
    "nvfp4": {"mode": "nvfp4", "bits": 4, "group_size": 16},
    "mixed": {
        "bits": 4,
        "group_size": 64,
        "model.layers.0.linear_attn.in_proj_qkv": {"bits": 8, "group_size": 64},
        "model.layers.0.linear_attn.in_proj_a": False,
        "model.layers.1.self_attn.q_proj": {"bits": 8, "group_size": 32},
    },
}


@pytest.mark.parametrize("name", QUANTIZATIONS)
def test_quantized_model_matches_mlx_lm_in_float32(tmp_path, name):
    from mlx_lm.utils import load_model

    config = {**HYBRID, "model_type": "qwen3_5", "torch_dtype": "float32"}
    # with an unquantized embedding, activations stay in float32
    forms = {**QUANTIZATIONS[name], "model.embed_tokens": False}
    folder = write_family(tmp_path, {**config, "quantization": forms})
    written = json.loads((folder / "config.json").read_text())
    prefixed = {  # mlx_lm expects its own parameter paths
        path.replace("model.", "language_model.model.", 1): form for path, form in forms.items()
    }
    (folder / "config.json").write_text(json.dumps({**config, "quantization": prefixed}))
    theirs = load_model(folder)[0]
    actual = []
    for each in ({**written, "quantization": prefixed}, written):
        model = serving_model("it", read_checkpoint(folder, each), page_size=16)
        actual.append(sequence_logits(model, IDS))
    assert_same_bits(*actual, "paths with and without the prefix")
    expected = as_numpy(theirs(mx.array([IDS]))[0])
    np.testing.assert_allclose(as_numpy(actual[0]), expected, atol=5e-4)


@pytest.mark.usefixtures("on_cpu")
def test_kernels_match_the_reference_in_bfloat16():
    checkpoint = random_checkpoint({**HYBRID, "quantization": QUANTIZATIONS["4 bits"]})
    paged, reference = (
        sequence_logits(serving_model("it", checkpoint, 16, backend), IDS)
        for backend in ("paged", "reference")
    )
    assert_close(paged, reference, "kernels", ulps=16)


def test_mlx_lm_and_course_models_are_rejected():
    from mlx_lm.models import qwen3_5

    config = {**HYBRID, "model_type": "qwen3_5"}
    theirs = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config))
    with pytest.raises(
        ModelError, match="is a qwen3_5 model, which .* load it with `load_weights`"
    ):
        serving_model("it", theirs, 16)
    with pytest.raises(ModelError, match="is a model of type 'qwen3_5', which the course's layers"):
        dispatch_model("it", random_checkpoint(config), 2)


def write_loadable(folder, config, **tensors):
    """Writes a random checkpoint with the demo's tokenizer and extra `tensors`."""
    folder = write_family(folder, {**config, "vocab_size": 4608})
    path = str(folder / "model.safetensors")
    mx.save_safetensors(path, {**mx.load(path), **tensors})
    for file in TARGET_PATH.iterdir():
        if "token" in file.name:
            (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_vision_tower_and_mtp_are_skipped_with_one_line(tmp_path, capsys):
    extra = {"model.visual.patch.weight": mx.ones((2, 2)), "mtp.norm.weight": mx.ones(3)}
    folder = write_loadable(tmp_path, HYBRID, **extra)
    text = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**NESTED, "text_config": text}))
    weights, _ = load_weights(str(folder))
    assert "mtp" not in weights
    [line] = capsys.readouterr().err.strip().splitlines()
    assert line.endswith(
        ": skipped 2 tensors of the vision tower or the MTP layer; only text input is supported."
    )
    write_loadable(tmp_path, HYBRID)
    load_weights(str(folder))
    assert capsys.readouterr().err == ""


def hugging_face_layout(tensors, single_experts):
    """Hugging Face's layout: norm weights minus 1, experts stacked or separate."""
    converted = {}
    for name, tensor in tensors.items():
        mlp, _, projection = name.removesuffix("_proj.weight").partition(".switch_mlp.")
        if projection and single_experts:
            for index, expert in enumerate(tensor):
                converted[f"{mlp}.experts.{index}.{projection}_proj.weight"] = expert
        elif projection == "gate":
            pair = [tensor, tensors[f"{mlp}.switch_mlp.up_proj.weight"]]
            converted[f"{mlp}.experts.gate_up_proj"] = mx.concatenate(pair, axis=1)
        elif projection == "down":
            converted[f"{mlp}.experts.down_proj"] = tensor
        elif name.endswith("conv1d.weight"):
            converted[name] = tensor.swapaxes(1, 2)
        elif tensor.ndim == 1 and "linear_attn" not in name:
            converted[name] = tensor - 1
        elif not projection:
            converted[name] = tensor
    return converted


@pytest.mark.parametrize("config", [HYBRID, HYBRID_MIXTURE], ids=["dense", "moe"])
@pytest.mark.parametrize("layout", ["stacked", "single", "4bit"])
def test_mtp_layouts_have_equal_arrays(tmp_path, config, layout):
    config = {**config, **FORMATS["4bit" if layout == "4bit" else "float32"]}
    tensors, _ = random_tensors(config, mtp=True)
    if layout == "4bit":
        other = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    else:
        other = hugging_face_layout(tensors, layout == "single")
    for name, each in (("mlx", tensors), ("other", other)):
        write_family(tmp_path / name, config)
        mx.save_safetensors(str(tmp_path / name / "model.safetensors"), each)
    first, second = (
        dict(tree_flatten(read_checkpoint(tmp_path / name, config, mtp=True)))
        for name in ("mlx", "other")
    )
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert_same_bits(second[name], tensor, name)
    plain = dict(tree_flatten(read_checkpoint(tmp_path / "other", config)))
    assert plain.keys() == {name for name in first if not name.startswith("mtp.")} < first.keys()


@pytest.mark.parametrize("prefix", ["", "language_model."])
def test_names_without_the_model_prefix(tmp_path, prefix):
    """transformers saves base models so, for example embedding models."""
    tensors, _ = random_tensors(HYBRID)
    write_family(tmp_path, HYBRID)
    expected = dict(tree_flatten(read_checkpoint(tmp_path, HYBRID)))
    mx.eval(list(expected.values()))  # because the file is overwritten below
    bare = {prefix + name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    bare["visual.patch_embed.weight"] = mx.ones(2)
    mx.save_safetensors(str(tmp_path / "model.safetensors"), bare)
    actual = dict(tree_flatten(read_checkpoint(tmp_path, HYBRID)))
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert_same_bits(actual[name], tensor, name)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"mtp.fc.weight": mx.ones((128, 128))},
            "mtp.fc.weight has shape 128×128, expected 128×256",
        ),
        (
            {"mtp.embed_tokens.weight": mx.ones((9, 9))},
            "mtp.embed_tokens.weight is not a tensor of",
        ),
        (
            {"mtp.layers.1.mlp.up_proj.weight": mx.ones((9, 9))},
            "mtp.layers.1.mlp.up_proj.weight is not",
        ),
    ],
)
def test_invalid_mtp_tensors_are_named(tmp_path, tensors, message):
    weights, _ = random_tensors({**HYBRID, "vocab_size": 4608}, mtp=True)
    folder = write_loadable(tmp_path, HYBRID, **{**weights, **tensors})
    with pytest.raises(ModelError, match=message):
        load_weights(str(folder), mtp=True)
    load_weights(str(folder))


def test_text_config_is_read_by_all_loaders(tmp_path):
    text = {**HYBRID, "vocab_size": 4608, "eos_token_id": 7, "dtype": "float16"}
    folder = write_loadable(tmp_path, text)
    (folder / "config.json").write_text(json.dumps({**NESTED, "text_config": text}))
    assert read_model_config(folder)["hidden_size"] == 128
    for load_format in ("auto", "dummy"):
        weights, tokenizer = load_weights(str(folder), load_format=load_format)
        assert weights.layers[1].self_attn.q_proj.weight.shape == (2 * 4 * 32, 128)
        assert weights.layers[0].linear_attn.A_log.dtype == mx.float32
        assert 7 in tokenizer.eos_token_ids
    assert weights.model.norm.weight.dtype == mx.float16


CONV = "model.layers.0.linear_attn.conv1d.weight"
A_LOG = "model.layers.0.linear_attn.A_log"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({CONV: mx.ones((224, 4, 2))}, f"{CONV} has shape 224×4×2, expected 224×4×1"),
        ({CONV: mx.ones((220, 1, 4))}, f"{CONV} has shape 220×1×4, expected 224×4×1"),
        ({A_LOG: mx.ones((4, 1))}, f"{A_LOG} has shape 4×1, expected 4"),
        ({A_LOG: mx.ones(4, mx.int32)}, f"'{A_LOG}' has dtype I32, expected F32"),
        (
            {"model.layers.0.linear_attn.in_proj_qkvz.weight": mx.ones((9, 9))},
            "qkvz.weight is not a",
        ),
        ({"vision.weight": mx.ones(1)}, "vision.weight is not a tensor of a qwen3_5_text"),
        (
            {"model.language_model.norm.weight": mx.ones(128)},
            "model.language_model.norm.weight and model.norm.weight both map to model.norm.weight",
        ),
    ],
)
def test_invalid_tensors_are_named(tmp_path, tensors, message):
    folder = write_loadable(tmp_path, HYBRID, **tensors)
    with pytest.raises(ModelError, match=message):
        load_weights(str(folder))


def test_unsupported_quantization_is_rejected(tmp_path):
    folder = write_loadable(tmp_path, {**HYBRID, "quantization_config": {"quant_method": "fp8"}})
    with pytest.raises(
        ModelError, match="quantized by 'fp8', which is not an MLX format; .* `mlx_lm.convert -q`"
    ):
        load_weights(str(folder))


SPLIT = {"linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_value_head_dim": 16}


@pytest.mark.parametrize("config", [HYBRID, HYBRID_MIXTURE], ids=["dense", "moe"])
@pytest.mark.parametrize("form", ["float32", "bfloat16", "4bit"])
def test_shards_read_from_a_file_equal_the_slices(tmp_path, config, form):
    config = {**config, **SPLIT, "num_attention_heads": 8, **FORMATS[form]}
    folder = write_family(tmp_path, config)
    whole, stored = mx.load(str(folder / "model.safetensors")), read_tensor_headers(folder)
    parts = [RankShard(read_config(config), rank, 2) for rank in range(2)]
    for name, tensor in stored.items():
        cut = [part.slice_tensor(name, whole[name]) for part in parts]
        for part, own in zip(parts, cut, strict=True):
            read = part.read_tensor(name, tensor)
            assert (read.dtype, read.shape) == (own.dtype, own.shape), name
            assert mx.array_equal(read, own), name
    for part in parts:
        arrays = dict(tree_flatten(read_checkpoint(folder, config, part)))
        mx.eval(arrays)
        assert arrays["model.layers.0.linear_attn.A_log"].shape == (4,)


def test_ranks_own_value_heads_with_their_key_heads():
    config = read_config({**HYBRID, **SPLIT, "num_attention_heads": 8})
    net = config.delta_net
    channels = mx.arange(net.conv_channels)[:, None]
    q, k, v = mx.split(channels, [net.key_dim, 2 * net.key_dim])
    for rank in range(4):
        part = RankShard(config, rank, 4)
        # Rows of the rank's key head in the query or key projection.
        own = slice(rank * 24, (rank + 1) * 24)
        expected = mx.concatenate([q[own], k[own], v[rank * 32 : (rank + 1) * 32]])
        name = "model.layers.0.linear_attn.in_proj_qkv.weight"
        assert mx.array_equal(part.slice_tensor(name, channels), expected)
        vector = part.slice_tensor("model.layers.0.linear_attn.dt_bias", mx.arange(8))
        assert vector.tolist() == [2 * rank, 2 * rank + 1]
        assert part.config.delta_net.conv_channels == expected.shape[0]
    with pytest.raises(ValueError, match="linear_num_key_heads, 4, cannot be divided evenly"):
        RankShard(config, 0, 8)
