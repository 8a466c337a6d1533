"""Hybrid families: state slots, checkpoints, shards."""

import json
from array import array

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from tests.models.support import (
    HYBRID,
    HYBRID_MIXTURE,
    arrays_of,
    assert_same_arrays,
    name_of,
    sequence_logits,
    write_checkpoint,
    write_family,
)
from tests.support import assert_same_bits
from tiny_llm import ModelError, load_weights
from tiny_llm.demo import TARGET_PATH
from tiny_llm.engine.execution.paged_model import PagedModel, Span
from tiny_llm.generate import dispatch_model
from tiny_llm.models.checkpoint.dummy import random_checkpoint, random_tensors
from tiny_llm.models.checkpoint.layout import read_model_config, read_tensor_headers
from tiny_llm.models.checkpoint.sharding import RankShard
from tiny_llm.models.checkpoint.weights import read_checkpoint
from tiny_llm.models.families.registry import read_config
from tiny_llm.models.loading import serving_model

NESTED = {
    "model_type": "qwen3_5",
    "text_config": HYBRID,
    "vision_config": {"depth": 2},
    "image_token_id": 5,
    "tie_word_embeddings": True,
}


IDS = [(7 * i) % 211 for i in range(70)]
FORMATS = {dtype: {"torch_dtype": dtype} for dtype in ("float32", "float16", "bfloat16")}
FORMATS["4bit"] = {"quantization": {"bits": 4, "group_size": 32}}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("config", [HYBRID, HYBRID_MIXTURE], ids=name_of)
def test_logits_are_chunk_invariant(config, form):
    model = serving_model("it", random_checkpoint({**config, **FORMATS[form]}), 16)
    whole = sequence_logits(model, IDS)
    for ends in ([1, 2, 5, 40, 70], [33, *range(34, 71)]):
        assert_same_bits(sequence_logits(model, IDS, ends), whole, f"chunks ending at {ends}")


def test_storage_has_the_declared_bytes():
    model = serving_model("it", random_checkpoint(HYBRID), 16)
    # Per layer: a convolution state of 3×224 bfloat16 and a recurrent state of 4×24×32 float32.
    assert model.state_bytes == 2 * (3 * 224 * 2 + 4 * 24 * 32 * 4)
    assert model.kv_bytes_per_token == 2 * 2 * 2 * 32 * 2
    paged = PagedModel(model, 8, 7)
    span = Span(IDS[:3], 0, array("i", range(8)), -1, [(2, 5)])
    mx.eval(paged.logits([span], range(3)))  # `populate` requires evaluated arrays
    assert paged._storage.states.nbytes == model.state_bytes
    paged.populate(8, 7)
    assert paged.nbytes == 8 * 16 * model.kv_bytes_per_token + 7 * model.state_bytes
    with pytest.raises(ValueError, match="num_slots must be at least 1, got 0"):
        model.create_paged_storage(8)


def test_mlx_lm_and_course_models_are_rejected():
    from mlx_lm.models import qwen3_5

    config = {**HYBRID, "model_type": "qwen3_5"}
    theirs = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config))
    with pytest.raises(ModelError, match="is a qwen3_5 model, which .* with `load_weights`"):
        serving_model("it", theirs, 16)
    with pytest.raises(ModelError, match="is a model of type 'qwen3_5', which the course's layers"):
        dispatch_model("it", random_checkpoint(config), 2)


def write_loadable(folder, config, **tensors):
    """Writes a random checkpoint with the demo's tokenizer and extra `tensors`."""
    config = {**config, "vocab_size": 4608}
    write_checkpoint(folder, config, {**random_tensors(config)[0], **tensors})
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


@pytest.mark.parametrize("config", [HYBRID, HYBRID_MIXTURE], ids=name_of)
@pytest.mark.parametrize("layout", ["stacked", "single", "4bit"])
def test_mtp_layouts_have_equal_arrays(tmp_path, config, layout):
    config = {**config, **FORMATS["4bit" if layout == "4bit" else "float32"]}
    tensors, _ = random_tensors(config, mtp=True)
    if layout == "4bit":
        other = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    else:
        other = hugging_face_layout(tensors, layout == "single")
    write_checkpoint(tmp_path / "mlx", config, tensors)
    write_checkpoint(tmp_path / "other", config, other)
    first = arrays_of(tmp_path / "mlx", config, mtp=True)
    assert_same_arrays(arrays_of(tmp_path / "other", config, mtp=True), first)
    plain = arrays_of(tmp_path / "other", config)
    assert plain.keys() == {name for name in first if not name.startswith("mtp.")} < first.keys()


@pytest.mark.parametrize("prefix", ["", "language_model."])
def test_names_without_the_model_prefix(tmp_path, prefix):
    """transformers saves base models so, for example embedding models."""
    tensors, _ = random_tensors(HYBRID)
    write_checkpoint(tmp_path / "mlx", HYBRID, tensors)
    bare = {prefix + name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    write_checkpoint(tmp_path, HYBRID, {**bare, "visual.patch_embed.weight": mx.ones(2)})
    assert_same_arrays(arrays_of(tmp_path, HYBRID), arrays_of(tmp_path / "mlx", HYBRID))


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


NET = "model.layers.0.linear_attn"
CONV, A_LOG = f"{NET}.conv1d.weight", f"{NET}.A_log"
NORM = "model.language_model.norm.weight"


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (CONV, mx.ones((224, 4, 2)), f"{CONV} has shape 224×4×2, expected 224×4×1"),
        (CONV, mx.ones((220, 1, 4)), f"{CONV} has shape 220×1×4, expected 224×4×1"),
        (A_LOG, mx.ones((4, 1)), f"{A_LOG} has shape 4×1, expected 4"),
        (A_LOG, mx.ones(4, mx.int32), f"'{A_LOG}' has dtype I32, expected F32"),
        (f"{NET}.in_proj_qkvz.weight", mx.ones((9, 9)), "qkvz.weight is not a"),
        ("vision.weight", mx.ones(1), "vision.weight is not a tensor of a qwen3_5_text"),
        (NORM, mx.ones(128), f"{NORM} and model.norm.weight both map to model.norm.weight"),
        ("mtp.fc.weight", mx.ones((128, 128)), "mtp.fc.weight has shape 128×128, expected 128×256"),
        ("mtp.embed_tokens.weight", mx.ones((9, 9)), "mtp.embed_tokens.weight is not a tensor of"),
        ("mtp.layers.1.mlp.up_proj.weight", mx.ones((9, 9)), "mtp.layers.1.mlp.up_proj.weight is"),
    ],
)
def test_invalid_tensors_are_named(tmp_path, name, array, message):
    mtp = name.startswith("mtp.")
    weights, _ = random_tensors({**HYBRID, "vocab_size": 4608}, mtp=mtp)
    folder = write_loadable(tmp_path, HYBRID, **{**weights, name: array})
    with pytest.raises(ModelError, match=message):
        load_weights(str(folder), mtp=mtp)
    if mtp:
        load_weights(str(folder))


SPLIT = {"linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_value_head_dim": 16}


@pytest.mark.parametrize("config", [HYBRID, HYBRID_MIXTURE], ids=name_of)
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
