"""Gemma 4: checkpoint layouts, configs that are refused, and the table of per-layer inputs."""

import json

import mlx.core as mx
import numpy as np
import pytest

from tests.models import test_parity_transformers as parity
from tests.models.support import (
    GEMMA4,
    GEMMA4_MIXTURE,
    import_references,
    random_ids,
    run_changing_batch,
    run_sequence,
    sequence_logits,
    transformers_logits,
    write_family,
)
from tests.support import as_numpy, assert_same_bits, resident_bytes_by_kind
from tiny_llm import load_weights
from tiny_llm.models.checkpoint.dummy import random_checkpoint
from tiny_llm.models.checkpoint.weights import read_checkpoint
from tiny_llm.models.families.registry import read_config
from tiny_llm.models.serving_model import serving_model

VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "position_embedding_size": 16,
}
# Prefixes of MLX's tensors, for those of Hugging Face.
MLX_PREFIXES = {
    "model.language_model.": "language_model.model.",
    "model.vision_tower.": "vision_tower.",
    "model.embed_vision.": "embed_vision.",
}


def mlx_layout(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    renamed = {}
    for name, tensor in tensors.items():
        for prefix, other in MLX_PREFIXES.items():
            name = name.replace(prefix, other)
        if name.endswith("experts.gate_up_proj"):
            path = name.removesuffix("gate_up_proj")
            for part, half in zip(("gate", "up"), mx.split(tensor, 2, axis=1), strict=True):
                renamed[f"{path}switch_glu.{part}_proj.weight"] = half
        elif name.endswith("experts.down_proj"):
            renamed[f"{name.removesuffix('down_proj')}switch_glu.down_proj.weight"] = tensor
        else:
            renamed[name] = tensor
    return renamed


@pytest.mark.parametrize("layout", ["transformers", "mlx"])
@pytest.mark.parametrize("text", [GEMMA4, GEMMA4_MIXTURE], ids=["e2b", "moe"])
def test_text_of_a_multimodal_checkpoint(tmp_path, text, layout):
    torch, transformers = import_references()
    torch.manual_seed(0)
    given = {**text, "model_type": "gemma4_text"}
    config = transformers.Gemma4Config(text_config=given, vision_config=VISION, audio_config=None)
    parity.torch = torch
    theirs = parity.random_model(transformers.Gemma4ForConditionalGeneration(config))
    theirs.save_pretrained(tmp_path)
    file = str(tmp_path / "model.safetensors")
    tensors = dict(mx.load(file))
    # Hugging Face's checkpoints have these tensors although the layers do not use them.
    shared = read_config(given).kv_sources
    for index in (i for i, source in enumerate(shared) if source != i):
        path = f"model.language_model.layers.{index}.self_attn"
        tensors[f"{path}.k_proj.weight"] = tensors[f"{path}.v_proj.weight"] = mx.ones((2, 2))
        tensors[f"{path}.k_norm.weight"] = mx.ones(3)
    tensors = mlx_layout(tensors) if layout == "mlx" else tensors
    mx.eval(tensors)
    mx.save_safetensors(file, tensors)
    weights = read_checkpoint(tmp_path, json.loads((tmp_path / "config.json").read_text()))
    assert weights.num_skipped >= sum("vision" in name for name in tensors) > 0
    ids = random_ids(77)
    ours = sequence_logits(serving_model("it", weights, page_size=16), ids)
    np.testing.assert_allclose(as_numpy(ours), transformers_logits(theirs, ids), atol=1e-4)


@pytest.mark.parametrize("bits", [None, 4, 5])
def test_mapped_table(tmp_path, bits, on_cpu):
    """The table of a loaded checkpoint stays in its file, in its format."""
    config = {**GEMMA4, "vocab_size_per_layer_input": 300_000}
    if bits is not None:
        config["quantization"] = {"group_size": 64, "bits": bits}
    folder = write_family(tmp_path, config)
    unmapped = read_checkpoint(folder, config)
    expected = sequence_logits(serving_model("it", unmapped, page_size=16), random_ids(60))
    mx.eval(expected)
    table_bytes = sum(x.nbytes for x in unmapped.model.embed_tokens_per_layer.values())
    del unmapped
    before = resident_bytes_by_kind()
    (folder / "tokenizer.json").write_text("{}")
    weights, _ = load_weights(str(folder), with_tokenizer=False)
    model = serving_model("it", weights, page_size=16)
    actual = sequence_logits(model, random_ids(60))
    for kind, start in before.items():
        assert resident_bytes_by_kind()[kind] - start < table_bytes / 2, kind
    assert_same_bits(actual, expected, "mapped")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention 'all', expected"),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers 5, expected so few that each type"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4, expected a multiple of"),
        ({"global_head_dim": 514}, "global_head_dim 514, expected an even number of at most 512"),
        ({"per_layer_config": [1]}, "per_layer_config .*, expected an object"),
        ({"enable_moe_block": True}, "config.json has no num_experts"),
        ({"vocab_size_per_layer_input": 99}, "vocab_size_per_layer_input 99, expected at least"),
        ({"hidden_activation": "gelu"}, "hidden_activation 'gelu', expected 'gelu_pytorch_tanh'"),
    ],
)
def test_refused_configs(fields, message):
    with pytest.raises(ValueError, match=message):
        read_config({**GEMMA4, **fields})


@pytest.mark.parametrize("config", [GEMMA4, GEMMA4_MIXTURE], ids=["e2b", "moe"])
@pytest.mark.parametrize("run", [run_sequence, run_changing_batch])
def test_int8_pages(on_cpu, config, run):
    checkpoint = random_checkpoint({**config, "torch_dtype": "float32"})
    paged, reference = (
        run(serving_model("it", checkpoint, 16, backend, "int8"))
        for backend in ("paged", "reference")
    )
    # Different roundings in float32 may round a key or value to another 8-bit integer.
    error = as_numpy(paged) - as_numpy(reference)
    assert np.sqrt(np.mean(error**2)) < 2**-6 * np.sqrt(np.mean(as_numpy(reference) ** 2))


def test_last_layer_attends_to_all_keys():
    types = ["sliding_attention"] * 6
    config = read_config({**GEMMA4, "layer_types": types, "num_kv_shared_layers": 0})
    assert config.sliding_window.layers == frozenset(range(5))
    assert config.kv_shape_of(4) == (1, 32)
    assert config.kv_shape_of(5) == (1, 64)
