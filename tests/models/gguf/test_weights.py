"""Logits of random GGUF models of each architecture, compared with transformers."""

from dataclasses import replace
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf import quants

from tests.models import parity
from tests.models.gguf.support import write_model
from tests.models.parity import LINEAR, LLAMA3, TIED, YARN, delta_net, experts, heads, rope
from tests.models.support import (
    dequantized,
    import_references,
    random_ids,
    sequence_logits,
    transformers_logits,
)
from tests.support import as_numpy
from tiny_llm import load_weights
from tiny_llm.kernels.prepack import copy_tree
from tiny_llm.models import ModelError
from tiny_llm.models.gguf.config import tensor_names
from tiny_llm.models.gguf.reader import open_gguf
from tiny_llm.models.loading import serving_model
from tiny_llm.models.memory import model_size, size_of_tree


@pytest.fixture(scope="module", autouse=True)
def _references() -> None:
    import_references()


SIZES = {**parity.SIZES, "hidden_size": 64, "intermediate_size": 96, "rms_norm_eps": 1e-5}
MIXTURE = experts(5, 2, 32)
SHARED = {"shared_expert_intermediate_size": 64}
HYBRID = {**parity.hybrid_attention(4, 2, 16), **delta_net(2, 4, 32, 32), "num_hidden_layers": 5}
LLAMA3_ROPE = rope(LLAMA3, rope_theta=5e5, original_max_position_embeddings=8192)
BIASES = {"attention_bias": True, "mlp_bias": True}
GEMMA3 = {"sliding_window": 13, "num_hidden_layers": 7, "query_pre_attn_scalar": 16}
E2B = {"global_head_dim": 32, "hidden_size_per_layer_input": 32}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", heads(4, 2, 16)),
    "llama-tied": ("Llama", {**heads(4, 4, 24), **BIASES, **TIED}),
    "llama-3.1": ("Llama", {**heads(8, 1, 32), **LLAMA3_ROPE}),
    "llama-linear": ("Llama", {**heads(4, 2, 16), **rope(LINEAR)}),
    "mistral": ("Mistral", {**heads(4, 2, 16), "sliding_window": 19}),
    "qwen2": ("Qwen2", heads(4, 2)),
    "qwen3": ("Qwen3", {**heads(4, 2, 32), **rope(YARN)}),
    "qwen3moe": ("Qwen3Moe", {**heads(4, 2, 16), **MIXTURE, "norm_topk_prob": True}),
    "qwen35": ("Qwen3_5", {**HYBRID, **TIED}),
    "qwen35moe": ("Qwen3_5Moe", {**HYBRID, **MIXTURE, **SHARED}),
    "gemma3": ("Gemma3", {**heads(4, 1, 16), **GEMMA3, **rope(parity.GEMMA3_ROPE)}),
    "gpt-oss": ("GptOss", {**parity.MODELS["gpt_oss"][1], **heads(4, 2, 16)}),
    "gemma4": ("Gemma4", {**parity.MODELS["gemma4-e2b"][1], **heads(4, 1, 16), **E2B}),
    "gemma4-moe": (
        "Gemma4",
        {**parity.MODELS["gemma4-moe"][1], "global_head_dim": 32, "moe_intermediate_size": 32},
    ),
}


def make_model(name: str) -> Any:
    family, fields = MODELS[name]
    return parity.random_model(family, {**SIZES, **fields})


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_transformers(tmp_path, name):
    theirs = make_model(name)
    weights, _ = load_weights(str(write_model(tmp_path / "model.gguf", theirs)))
    ours, ids = serving_model(name, weights, page_size=16), random_ids(77)
    np.testing.assert_allclose(
        as_numpy(sequence_logits(ours, ids)), transformers_logits(theirs, ids), atol=1e-4
    )


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3moe", "qwen35", "qwen35moe"])
@pytest.mark.parametrize(
    "kind", [Type.Q4_0, Type.Q4_1, Type.Q5_1, Type.Q8_0, Type.MXFP4, Type.F16, Type.BF16]
)
def test_weights_of_quantized_models(tmp_path, name, kind):
    """Loaded weights are bit-equal to those dequantized by `gguf`; activations have 16 bits."""
    model = make_model(name)
    loaded, _ = load_weights(str(write_model(tmp_path / "model.gguf", model, kind=kind)))
    has_float16 = kind not in (Type.MXFP4, Type.BF16)
    dtype = mx.float16 if has_float16 else mx.bfloat16
    assert serving_model(name, loaded, page_size=16).dtype == dtype
    layers = dict(loaded.named_modules())
    for path, parameter in model.state_dict().items():
        if parameter.ndim < 2 or "conv1d" in path or path == "lm_head.weight":
            continue
        stored = quants.quantize(parameter.numpy(), kind)
        expected = quants.dequantize(stored, kind).reshape(parameter.shape)
        if path.endswith("gate_up_proj"):
            experts = layers[path.replace("experts.gate_up_proj", "switch_mlp")]
            halves = weight_of(experts.gate_proj), weight_of(experts.up_proj)
            actual = np.concatenate(halves, axis=1)
        else:
            path = path.replace("experts.down_proj", "switch_mlp.down_proj")
            actual = weight_of(layers[path.removesuffix(".weight")])
        np.testing.assert_array_equal(actual, expected, err_msg=path)


def weight_of(layer: Any) -> np.ndarray:
    if hasattr(layer, "lookup"):
        return as_numpy(layer.lookup(mx.arange(SIZES["vocab_size"])))
    return dequantized(layer)


def round_to(rows: Any, kind: Type) -> None:
    """Replaces the values of a torch tensor by those that a type stores."""
    import torch

    rounded = quants.dequantize(quants.quantize(rows.numpy(), kind), kind)
    rows.copy_(torch.tensor(rounded).reshape(rows.shape))


@pytest.mark.parametrize("name", ["gpt-oss", "gemma4", "gemma4-moe"])
def test_experts_in_mxfp4_beside_q8_0(tmp_path, name):
    """Weights are those of `gguf`, bit for bit; activations have 16 bits."""
    model = make_model(name)
    for path, parameter in model.named_parameters():
        if parameter.ndim > 1 and not path.endswith("bias"):
            kind = Type.MXFP4 if ".experts." in path else Type.Q8_0
            is_transposed = name == "gpt-oss" and ".experts." in path
            round_to(parameter.data.mT if is_transposed else parameter.data, kind)
    file = write_model(tmp_path / "model.gguf", model, kind=Type.Q8_0, expert_kind=Type.MXFP4)
    loaded, _ = load_weights(str(file))
    layers = dict(loaded.named_modules())
    for tensor in gguf.GGUFReader(file).tensors:
        paths = [
            each.removesuffix(".weight") for each in tensor_names(tensor.name, open_gguf(file))
        ]
        if paths and paths[0] in layers and len(tensor.shape) > 1:
            actual = np.concatenate([weight_of(layers[path]) for path in paths], axis=-2)
            expected = gguf.dequantize(tensor.data, tensor.tensor_type)
            np.testing.assert_array_equal(actual, expected, err_msg=tensor.name)
    ours, ids = serving_model(name, loaded, page_size=16), random_ids(77)
    assert ours.dtype == mx.bfloat16
    assert ours.supports_graph_capture
    expected = transformers_logits(model, ids)
    # Routing is discontinuous, so logits of single tokens may differ more.
    error = np.abs(as_numpy(sequence_logits(ours, ids)) - expected)
    assert np.median(error) < 0.01 * np.abs(expected).max()


def test_split_model(tmp_path):
    theirs = make_model("llama")
    write_model(tmp_path / "model.gguf", theirs, split_max_tensors=9)
    first, second, *_ = sorted(tmp_path.glob("model-*.gguf"))
    weights, _ = load_weights(str(first))
    ids = random_ids(20)
    actual = as_numpy(sequence_logits(serving_model("split", weights, page_size=16), ids))
    np.testing.assert_allclose(actual, transformers_logits(theirs, ids), atol=1e-4)
    with pytest.raises(ModelError, match="is not the first file of a split model"):
        load_weights(str(second))
    second.unlink()
    with pytest.raises(ModelError, match="of which number 2 is missing"):
        load_weights(str(first))


@pytest.mark.parametrize("kind", [Type.Q4_1, Type.Q8_0])
def test_size_is_known_before_loading(tmp_path, kind):
    file = write_model(tmp_path / "model.gguf", make_model("qwen3"), kind=kind)
    known, loaded = model_size(file), size_of_tree(load_weights(str(file))[0])
    # The biases of symmetric weights are not stored.
    assert loaded.weight_bytes <= known.weight_bytes < 1.06 * loaded.weight_bytes
    assert replace(known, weight_bytes=loaded.weight_bytes) == loaded


@pytest.mark.parametrize("name", ["llama", "qwen35moe"])
def test_shards(tmp_path, name):
    """The ranks' shards have the weights of the full model."""
    file = write_model(tmp_path / "model.gguf", make_model(name), kind=Type.F32)
    (full, _), *shards = [
        load_weights(str(file), rank=rank, num_ranks=size)
        for rank, size in ((0, 1), (0, 2), (1, 2))
    ]
    rows = [shard.model.embed_tokens.weight for shard, _ in shards]
    assert mx.array_equal(mx.concatenate(rows), full.model.embed_tokens.weight)
    index = next(i for i, layer in enumerate(full.layers) if "self_attn" in layer)
    columns = [shard.layers[index].self_attn.o_proj.weight for shard, _ in shards]
    expected = full.layers[index].self_attn.o_proj.weight
    assert mx.array_equal(mx.concatenate(columns, axis=1), expected)


def test_copies_share_the_weights_and_dummy_ones_have_their_formats(tmp_path):
    """The engine copies the tree for 8-bit activations."""
    file = str(write_model(tmp_path / "model.gguf", make_model("llama"), kind=Type.Q4_0))
    weights, _ = load_weights(file)
    assert copy_tree(weights).model.embed_tokens.weight is weights.model.embed_tokens.weight
    dummy, tokenizer = load_weights(file, load_format="dummy")
    assert dummy.layers[0].mlp.up_proj.bits == 4
    assert dummy.model.embed_tokens.scales.dtype == mx.float16
    assert tokenizer.decode(tokenizer.encode("a b", add_special_tokens=False)) == "a b"


@pytest.mark.parametrize(
    ("name", "metadata", "message"),
    [
        ("llama", [("expert_count", 8)], "llama with experts, is not supported in GGUF files"),
        ("llama", [("embedding_length", 32)], "token_embd|embed_tokens"),
        ("qwen3", [("block_count", 4)], "model.layers.3.*are missing"),
    ],
)
def test_inconsistent_models_are_rejected(tmp_path, name, metadata, message):
    file = write_model(tmp_path / "model.gguf", make_model(name), metadata=metadata)
    with pytest.raises(ModelError, match=message):
        load_weights(str(file))


def test_mtp_layer_is_skipped(tmp_path):
    theirs = make_model("qwen35")
    metadata = [("nextn_predict_layers", 1)]  # the last of five layers
    file = write_model(tmp_path / "model.gguf", theirs, metadata=metadata)
    weights, _ = load_weights(str(file))
    assert len(weights.layers) == 4
    with pytest.raises(ModelError, match="multi-token prediction layer of GGUF files is not"):
        load_weights(str(file), mtp=True)
