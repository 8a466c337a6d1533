"""Adapters compared with merged weights, W + scale · (A · B)ᵀ, and mlx_lm."""

from dataclasses import replace

import mlx.core as mx
import pytest

from tests.models.lora_adapters.support import random_adapter, write_adapter, write_peft_adapter
from tests.models.support import (
    FAMILIES,
    HYBRID,
    HYBRID_MIXTURE,
    MIXTURE,
    run_changing_batch,
    sequence_logits,
    write_family,
)
from tests.support import assert_close, assert_same_bits
from tiny_llm.models.checkpoint.dummy import random_tensors
from tiny_llm.models.checkpoint.weights import build_model_tree, read_checkpoint
from tiny_llm.models.families.registry import read_config
from tiny_llm.models.loading import serving_model
from tiny_llm.models.lora_adapters import attach_adapters

# `mlx_lm` has other names for gpt-oss's experts, and rounds Gemma 3's embedding scale to bfloat16.
FAMILIES = {
    name: config for name, config in FAMILIES.items() if name not in ("gpt_oss", "gemma3_text")
}
CONFIGS = {**FAMILIES, "moe": MIXTURE, "hybrid": HYBRID, "hybrid_moe": HYBRID_MIXTURE}
FLOAT32 = {"torch_dtype": "float32"}
IDS = [3 + position * 7 % 190 for position in range(45)]


def decoder_with(config, folder=None, adapter=0):
    """Random model; all tokens use the adapter if `folder` is given."""
    weights, formats = random_tensors(config)
    decoder = serving_model("m", build_model_tree(read_config(config), weights, formats), 8)
    if folder is not None:
        attach_adapters(decoder, [folder])
        set_adapter(decoder, adapter)
    return decoder


def set_adapter(decoder, adapter: int) -> None:
    """Applies one adapter to all tokens of steps from `tests/models/support.py`."""
    original = decoder.ragged_features

    def ragged_features(ids, batch, rows, storage):
        adapter_ids = mx.full(batch.num_tokens, adapter, dtype=mx.int32)
        batch.attention_metadata = replace(batch.attention_metadata, adapter_ids=adapter_ids)
        return original(ids, batch, rows, storage)

    decoder.ragged_features = ragged_features


def merged(config, tensors, scale: float):
    """The random model with an adapter merged into its float32 weights."""
    weights, formats = random_tensors(config)
    for name in tensors:
        path, _, kind = name.rpartition(".")
        if kind == "lora_a":
            update = scale * (tensors[f"{path}.lora_a"] @ tensors[f"{path}.lora_b"]).T
            weights[f"{path}.weight"] = weights[f"{path}.weight"] + update
    return serving_model("m", build_model_tree(read_config(config), weights, formats), 8)


@pytest.mark.parametrize("rank", [1, 5, 16])
@pytest.mark.parametrize("family", CONFIGS)
def test_equals_merged_weights(tmp_path, family, rank):
    config = {**CONFIGS[family], **FLOAT32}
    tensors = random_adapter(config, rank, size=0.2)
    decoder = decoder_with(config, write_adapter(tmp_path, tensors, rank, scale=1.5))
    actual = sequence_logits(decoder, IDS)
    assert_close(actual, sequence_logits(merged(config, tensors, 1.5), IDS), "merged", ulps=300)
    difference = mx.abs(actual - sequence_logits(decoder_with(config), IDS)).max()
    assert difference.item() > 0.1, "expected the adapter to have an effect"


def assert_equals_mlx_lm(config, folder, adapter, ulps: float) -> None:
    """Compares logits of a checkpoint with an adapter to mlx_lm's."""
    from mlx_lm.tuner.utils import load_adapters
    from mlx_lm.utils import load_model

    theirs = load_adapters(load_model(folder)[0], str(adapter))
    ours = serving_model("m", read_checkpoint(folder, config), 8)
    attach_adapters(ours, [adapter])
    set_adapter(ours, 0)
    actual = sequence_logits(ours, IDS)
    assert_close(actual, theirs(mx.array([IDS]))[0].astype(actual.dtype), "mlx_lm", ulps)


@pytest.mark.parametrize("rank", [3, 8])
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_mlx_lm(tmp_path, family, rank):
    config = {**FAMILIES[family], **FLOAT32}
    tensors = random_adapter(config, rank, last=1, size=0.3)
    adapter = write_adapter(tmp_path / "adapter", tensors, rank, 2.5, num_layers=1)
    assert_equals_mlx_lm(config, write_family(tmp_path / "model", config), adapter, ulps=300)


def test_equals_mlx_lm_in_4_bits(tmp_path):
    """Logits are in bfloat16: 8 ulps are 6 % of the largest logit."""
    config = {**FAMILIES["qwen3"], "quantization": {"bits": 4, "group_size": 64}}
    adapter = write_adapter(tmp_path / "adapter", random_adapter(config, 6), 6)
    assert_equals_mlx_lm(config, write_family(tmp_path / "model", config), adapter, ulps=8)


def test_peft_layout_is_bitwise_equal(tmp_path):
    config = FAMILIES["qwen3"]
    tensors = random_adapter(config, 4)
    ours = decoder_with(config, write_adapter(tmp_path / "mlx", tensors, 4, scale=2.0))
    peft = decoder_with(config, write_peft_adapter(tmp_path / "peft", tensors, 4, alpha=8))
    expected = sequence_logits(ours, IDS)
    assert_same_bits(sequence_logits(peft, IDS), expected, "lora_alpha / r")
    folder = write_peft_adapter(tmp_path / "rs", tensors, 4, alpha=4, use_rslora=True)
    assert_same_bits(sequence_logits(decoder_with(config, folder), IDS), expected, "rslora")


def test_fused_projections_are_split_like_their_weights(tmp_path):
    """Adapters of qwen3_next's fused in_proj_qkvz and in_proj_ba are split."""
    from tiny_llm.models.families.tensor_layout import split_fused_projections

    config = {**HYBRID, **FLOAT32}
    model, rank, layer = read_config(config), 3, "model.layers.0.linear_attn"
    net = model.delta_net
    sizes = {"in_proj_qkvz": net.conv_channels + net.value_dim}
    sizes["in_proj_ba"] = 2 * net.num_value_heads
    tensors, weights, formats = {}, *random_tensors(config)
    for name, O in sizes.items():
        a, b = mx.random.normal((128, rank)) * 0.1, mx.random.normal((rank, O))
        tensors |= {f"{layer}.{name}.lora_a": a, f"{layer}.{name}.lora_b": b}
        update = {f"{layer}.{name}.weight": (a @ b).T}
        split_fused_projections(update, net)
        assert len(update) == 2
        for part, delta in update.items():
            weights[part] = weights[part] + delta
    expected = serving_model("m", build_model_tree(model, weights, formats), 8)
    decoder = decoder_with(config, write_adapter(tmp_path, tensors, rank, scale=1.0))
    assert_close(sequence_logits(decoder, IDS), sequence_logits(expected, IDS), "fused", ulps=300)


@pytest.mark.parametrize("backend", ["paged", "reference"])
@pytest.mark.parametrize("family", ["qwen3", "hybrid", "hybrid_moe"])
def test_without_adapter_bitwise_equal_to_the_model(tmp_path, family, backend):
    config = CONFIGS[family]
    weights, formats = random_tensors(config)

    def build():
        tree = build_model_tree(read_config(config), weights, formats)
        return serving_model("m", tree, 8, backend)

    plain, adapted = build(), build()
    attach_adapters(adapted, [write_adapter(tmp_path, random_adapter(config, 4), 4)])
    expected = run_changing_batch(plain)
    assert_same_bits(run_changing_batch(adapted), expected, "no adapter ids")
    set_adapter(adapted, -1)
    assert_same_bits(run_changing_batch(adapted), expected, "adapter ids −1")
