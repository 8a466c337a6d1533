"""Quantization: repacking preserves values; logits equal mlx_lm's."""

import copy
import json
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.nn.layers.base import Module

from tests.models.support import (
    FAMILIES,
    HYBRID,
    MIXTURE,
    dequantized,
    name_of,
    sequence_logits,
    write_family,
)
from tests.support import as_numpy, assert_close, random
from tiny_llm.kernels.prepack import bfloat16_to_e8m0, e8m0_to_bfloat16, is_kernel_supported
from tiny_llm.models.checkpoint.dummy import random_checkpoint
from tiny_llm.models.checkpoint.tensor_shapes import MODES, Quantization
from tiny_llm.models.checkpoint.weights import (
    pack_integers,
    read_checkpoint,
    repack,
    unpack_integers,
)
from tiny_llm.models.families.linear import MlxQuantizedWeights, embedding_from, linear_from
from tiny_llm.models.loading import serving_model
from tiny_llm.quantize import dequantize_linear

AFFINE = [(bits, group) for bits in MODES["affine"][0] for group in MODES["affine"][1]]
FORMATS = [Quantization(group, bits) for bits, group in AFFINE]
FLOATING = {"mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}
FORMATS += [Quantization(*sizes, mode) for mode, sizes in FLOATING.items()]
IDS = [f"{form.mode}-{form.bits}-{form.group_size}" for form in FORMATS]


class Layer(Module):
    """Quantized linear layer of a checkpoint."""


def layer_of(form: Quantization, weight: mx.array) -> Any:
    layer = Layer()
    stored = mx.quantize(weight, group_size=form.group_size, bits=form.bits, mode=form.mode)
    for name, array in zip(("weight", "scales", "biases"), stored, strict=False):
        setattr(layer, name, array)
    layer.group_size, layer.bits, layer.mode = form.group_size, form.bits, form.mode
    return layer


@pytest.mark.parametrize("form", FORMATS, ids=IDS)
def test_repacking_preserves_values(form):
    layer = layer_of(form, random(33, 256, dtype=mx.bfloat16))
    own = copy.copy(layer)
    repack(own)
    np.testing.assert_array_equal(dequantized(own), dequantized(layer))
    plain = "scales" not in own
    assert plain == (form.mode in ("mxfp8", "nvfp4"))
    assert plain or is_kernel_supported(own)


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_unpacked_integers_match_the_packed_words(bits):
    expected = np.random.default_rng(bits).integers(0, 2**bits, (3, 128), dtype=np.uint32)
    stream = np.zeros((3, 128 * bits), dtype=np.uint8)  # packed bits, lowest first
    for bit in range(bits):
        stream[:, bit::bits] = expected >> bit & 1
    words = np.packbits(stream, axis=1, bitorder="little").view(np.uint32)
    np.testing.assert_array_equal(np.array(unpack_integers(mx.array(words), bits, 64)), expected)
    if bits in (4, 8):
        np.testing.assert_array_equal(np.array(pack_integers(mx.array(expected), bits)), words)


def test_every_mxfp4_value():
    """All 16 codes, each with scales 1, 2^-126, 2^125 and NaN (byte 255)."""
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    values += [-value for value in values]
    layer = layer_of(Quantization(32, 4, "mxfp4"), mx.zeros((4, 32)))
    layer.weight = pack_integers(mx.broadcast_to(mx.arange(32, dtype=mx.uint32) % 16, (4, 32)), 4)
    layer.scales = mx.array([[127], [1], [252], [255]], mx.uint8)
    repack(layer)
    table = embedding_from(layer, (4, 32), mx.bfloat16)
    expected = np.outer([1, 2.0**-126, 2.0**125, np.nan], values + values)
    np.testing.assert_array_equal(as_numpy(table(mx.arange(4))), expected)


def test_scale_bits_are_its_exponent():
    exponents = mx.arange(256).astype(mx.uint8)
    scales = e8m0_to_bfloat16(exponents)
    expected = np.float32([2.0 ** (e - 127) for e in range(255)] + [np.nan])
    np.testing.assert_array_equal(as_numpy(scales), expected)
    assert mx.array_equal(bfloat16_to_e8m0(scales), exponents)


@pytest.mark.parametrize("form", FORMATS[::4], ids=IDS[::4])
def test_unsupported_formats_fall_back_to_mlx(form):
    """With float32 activations, MLX computes matmul and embedding."""
    weight, x = random(40, 256), random(3, 256)
    layer = layer_of(form, weight)
    linear = linear_from(layer, mx.float32)
    assert isinstance(linear.weight, MlxQuantizedWeights) or form.mode != "affine"
    weight = dequantize_linear(layer).astype(mx.float32)
    assert_close(linear(x), x @ weight.T, "matmul", ulps=256)
    if isinstance(linear.weight, MlxQuantizedWeights):
        ids = mx.array([[3, 39], [0, 3]])
        assert_close(linear.weight(ids), weight[ids], "embedding rows", ulps=0)
        np.testing.assert_array_equal(as_numpy(linear(x[1:2])), as_numpy(linear(x))[1:2])


MIXED = {
    "bits": 4,
    "group_size": 64,
    "model.layers.0.mlp.down_proj": {"bits": 6, "group_size": 32},
    "model.layers.1.self_attn.v_proj": {"bits": 8, "group_size": 64},
    "model.layers.1.mlp.gate_proj": False,
    "model.layers.0.mlp.gate": {"bits": 8, "group_size": 64},
    "model.layers.1.mlp.switch_mlp.up_proj": {"bits": 5, "group_size": 32},
    "model.layers.1.mlp.up_proj": {"mode": "mxfp4", "bits": 4, "group_size": 32},
    "model.layers.0.linear_attn.in_proj_qkv": {"bits": 8, "group_size": 64},
    "model.layers.0.linear_attn.in_proj_a": False,
    "model.layers.1.self_attn.q_proj": {"bits": 8, "group_size": 32},
}
MLX_HYBRID = {**HYBRID, "model_type": "qwen3_5"}
QUANTIZATIONS: dict[str, Any] = {"mixed": MIXED, "plain": None}
for bits in MODES["affine"][0]:
    QUANTIZATIONS[f"{bits} bits"] = {"bits": bits, "group_size": 32}
for mode, (group_size, bits) in FLOATING.items():
    QUANTIZATIONS[mode] = {"mode": mode, "bits": bits, "group_size": group_size}
TOKENS = [(7 * i) % 211 for i in range(20)]


def load_both(folder, config):
    """The engine's model and `mlx_lm`'s of a random checkpoint; (ours, theirs)."""
    from mlx_lm.utils import load_model

    write_family(folder, config)
    ours = serving_model("file", read_checkpoint(folder, config), page_size=16)
    if config["model_type"] == "qwen3_5":  # mlx_lm expects its own parameter paths
        forms = {
            path.replace("model.", "language_model.model.", 1): form
            for path, form in (config.get("quantization") or {}).items()
        }
        config = {**config, "quantization": forms}
        (folder / "config.json").write_text(json.dumps(config))
        named = serving_model("file", read_checkpoint(folder, config), page_size=16)
        assert_same_logits(named, ours, "paths with and without the prefix")
    return ours, load_model(folder)[0]


def assert_same_logits(actual, expected, what):
    np.testing.assert_array_equal(
        *(as_numpy(sequence_logits(model, TOKENS)) for model in (actual, expected)), what
    )


@pytest.mark.parametrize("name", QUANTIZATIONS)
@pytest.mark.parametrize("config", [FAMILIES["qwen3"], FAMILIES["llama"], MIXTURE], ids=name_of)
def test_model_matches_mlx_lm(tmp_path, config, name):
    ours, theirs = load_both(tmp_path, {**config, "quantization": QUANTIZATIONS[name]})
    [before] = theirs(mx.array([TOKENS]))
    if config is not MIXTURE:  # rounding to bfloat16 may change which experts are chosen
        # The bound is wide, because MLX's CPU kernel sums in bfloat16, and tiny-llm's and mlx_lm's
        # layers round to bfloat16 after different operations.
        assert_close(sequence_logits(ours, TOKENS), before, "load_weights", ulps=10)
    mx.eval(before)
    given = serving_model(name, theirs, page_size=16)
    assert_same_logits(given, ours, "compared with mlx_lm's model")
    [after] = theirs(mx.array([TOKENS]))
    np.testing.assert_array_equal(as_numpy(after), as_numpy(before), "mlx_lm's model is unchanged")


@pytest.mark.parametrize("name", ["3 bits", "4 bits", "8 bits", *FLOATING, "mixed", "plain"])
@pytest.mark.parametrize("config", [FAMILIES["qwen2"], MIXTURE, MLX_HYBRID], ids=name_of)
def test_model_matches_mlx_lm_in_float32(tmp_path, config, name):
    forms = QUANTIZATIONS[name]
    if forms is not None:
        # with an unquantized embedding, activations stay in float32
        config = {**config, "quantization": {**forms, "model.embed_tokens": False}}
    ours, theirs = load_both(tmp_path, {**config, "torch_dtype": "float32"})
    actual, expected = sequence_logits(ours, TOKENS), theirs(mx.array([TOKENS]))[0]
    atol = 5e-4 if "linear_key_head_dim" in config else 1e-4
    np.testing.assert_allclose(as_numpy(actual), as_numpy(expected), atol=atol)
    if config["model_type"] != "qwen3_5":
        given = serving_model(name, theirs, page_size=16)
        assert_same_logits(given, ours, "compared with mlx_lm's model")


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"mode": "mxfp5"}, "mode 'mxfp5', expected one of affine, mxfp4"),
        ({"mode": 7}, "mode 7"),
        ({"bits": 7}, "7-bit weights in groups of 64; mode affine supports 2, 3, 4, 5, 6 or 8"),
        ({"group_size": 16}, "4-bit weights in groups of 16; .* in groups of 32, 64 or 128"),
        ({"mode": "nvfp4", "group_size": 32}, "mode nvfp4 supports 4 bits in groups of 16"),
        ({"bits": "four"}, "bits 'four', expected a positive integer"),
        ({"bits": 4, "lm_head": {"bits": 9}}, "9-bit weights in groups of 64"),
    ],
)
def test_unknown_format_is_named(quantization, message):
    config = {**FAMILIES["llama"], "tie_word_embeddings": False, "quantization": quantization}
    with pytest.raises(ValueError, match=message):
        random_checkpoint(config)


@pytest.mark.parametrize("mode", [*FLOATING, "affine"])
def test_activations_keep_the_checkpoints_dtype(mode):
    """Log-probabilities in float16 are close to those in float32."""
    group_size, bits = FLOATING.get(mode, (32, 4))
    quantization = {"group_size": group_size, "bits": bits, "mode": mode}
    log_probs = []
    for dtype in ("float16", "float32"):
        config = {**FAMILIES["qwen3"], "torch_dtype": dtype, "quantization": quantization}
        model = serving_model(mode, random_checkpoint(config), page_size=16)
        assert model.dtype == getattr(mx, dtype)
        logits = sequence_logits(model, TOKENS).astype(mx.float32)
        log_probs.append(logits - mx.logsumexp(logits, axis=-1, keepdims=True))
    assert mx.abs(log_probs[0] - log_probs[1]).max().item() < 2e-2
