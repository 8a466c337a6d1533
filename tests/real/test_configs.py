"""Official configs: read as by transformers, or refused with one sentence."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.models.support import import_references
from tests.real.conftest import artifact_folder
from tiny_llm import ModelError
from tiny_llm.models.checkpoint.dummy import random_tensors
from tiny_llm.models.checkpoint.layout import read_model_config
from tiny_llm.models.families.registry import FAMILIES, read_config
from tools.real_artifacts import cached_folder

SUFFIX = "_config.json"
MODELS = sorted(
    file.name.removesuffix(SUFFIX)
    for file in (cached_folder("configs") or Path("none")).glob(f"*{SUFFIX}")
    if not file.name.endswith("_hf_quant_config.json")
)
SLIDING, FULL = "sliding_attention", "full_attention"


def gemma4(local: int, **text: Any) -> dict[str, Any]:
    """A config of Gemma 4, with `local` sliding layers before each layer with full attention."""
    layers = text["num_hidden_layers"]
    rope = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
    text = {
        "model_type": "gemma4_text",
        "vocab_size": 262_144,
        "num_attention_heads": 8,
        "head_dim": 256,
        "global_head_dim": 512,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 512,
        "layer_types": [FULL if (i + 1) % (local + 1) == 0 else SLIDING for i in range(layers)],
        "rope_parameters": {FULL: rope, SLIDING: {"rope_type": "default", "rope_theta": 1e4}},
        "hidden_size_per_layer_input": 256,
        "vocab_size_per_layer_input": 262_144,
        "tie_word_embeddings": True,
        **text,
    }
    return {"model_type": "gemma4", "text_config": text, "tie_word_embeddings": True}


GEMMA3 = {
    "model_type": "gemma3_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6,
    "rope_local_base_freq": 10_000,
    "rope_theta": 1_000_000,
    "sliding_window_pattern": 6,
}
LINEAR = {"factor": 8.0, "rope_type": "linear"}
# As converted by mlx-lm: MLP and router have 8 bits.
MIXED_BITS = {
    f"language_model.model.layers.{index}.{name}": {"group_size": 64, "bits": 8}
    for index in range(30)
    for name in ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "router.proj")
}
# The fields that matter of configs that no package has.
OTHERS = {
    "SmolLM3-3B": {
        "model_type": "smollm3",
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 65536,
        "max_window_layers": 28,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5_000_000.0,
        "layer_types": [FULL] * 36,
        "no_rope_layers": [1, 1, 1, 0] * 9,
        "no_rope_layer_interval": 4,
        "use_sliding_window": False,
        "sliding_window": None,
        "attention_bias": False,
        "mlp_bias": False,
        "pretraining_tp": 2,
        "tie_word_embeddings": True,
    },
    "gemma-3-1b-it": {
        **GEMMA3,
        "vocab_size": 262_144,
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "max_position_embeddings": 32768,
        "query_pre_attn_scalar": 256,
        "sliding_window": 512,
    },
    "gemma-3-4b-it": {
        "model_type": "gemma3",
        "mm_tokens_per_image": 256,
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
            "rope_scaling": LINEAR,
            "sliding_window": 1024,
        },
    },
    "gemma-3-27b-it": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "head_dim": 128,
            "hidden_size": 5376,
            "intermediate_size": 21504,
            "num_attention_heads": 32,
            "num_key_value_heads": 16,
            "num_hidden_layers": 62,
            "query_pre_attn_scalar": 168,
            "rope_scaling": LINEAR,
            "sliding_window": 1024,
        },
    },
    "gemma-4-E2B-it": gemma4(
        4,
        hidden_size=1536,
        intermediate_size=6144,
        num_hidden_layers=35,
        num_key_value_heads=1,
        num_kv_shared_layers=20,
        use_double_wide_mlp=True,
    ),
    "gemma-4-E4B-it": gemma4(
        5,
        hidden_size=2560,
        intermediate_size=10240,
        num_hidden_layers=42,
        num_key_value_heads=2,
        num_kv_shared_layers=18,
        use_double_wide_mlp=False,
    ),
}
# Official configs with fields that mlx-lm's conversion adds.
CONVERTED = {
    "gemma-4-26b-a4b-it-4bit": (
        "google--gemma-4-26B-A4B",
        {"quantization": {"group_size": 64, "bits": 4, "mode": "affine", **MIXED_BITS}},
    ),
}
QUANTIZED = ("FP8", "NVFP4")
SIZES = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings"),
)


def write_model(folder: Path, name: str) -> dict[str, Any]:
    """Writes a model's config files to `folder`; returns its config."""
    if name in OTHERS:
        (folder / "config.json").write_text(json.dumps(OTHERS[name]))
        return OTHERS[name]
    source = artifact_folder("configs")
    if name in CONVERTED:
        official, added = CONVERTED[name]
        config = {**json.loads((source / f"{official}{SUFFIX}").read_text()), **added}
        (folder / "config.json").write_text(json.dumps(config))
        return config
    for kind in ("config.json", "hf_quant_config.json"):
        if (source / f"{name}_{kind}").exists():
            (folder / kind).write_bytes((source / f"{name}_{kind}").read_bytes())
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.defaults])
def test_defaults(name):
    """Fields that a config may omit have the values of transformers' config class."""
    _, transformers = import_references()
    theirs = transformers.AutoConfig.for_model(name).get_text_config().to_dict()
    ours = FAMILIES[name].defaults
    shared = ours.keys() & theirs.keys()
    assert {field: ours[field] for field in shared} == {field: theirs[field] for field in shared}
    rope = theirs["rope_parameters"]
    theta = rope.get("full_attention", rope)["rope_theta"]
    parsed = read_config({field: theirs[field] for field in theirs if field != "layer_types"})
    assert parsed.rope_theta == ours.get("rope_theta", theta) == theta
    if "layer_types" in theirs:
        sliding = {i for i, each in enumerate(theirs["layer_types"]) if each == SLIDING}
        assert {i for i in range(len(theirs["layer_types"])) if parsed.window_of(i)} == sliding


def test_the_cache_has_configs():
    assert len(list(artifact_folder("configs").glob(f"*{SUFFIX}"))) > 100


@pytest.mark.parametrize("name", [*MODELS, *OTHERS, *CONVERTED])
def test_config(name, tmp_path):
    config = write_model(tmp_path, name)
    if config["model_type"] not in FAMILIES:
        with pytest.raises(
            ModelError, match=r"model type '\w|model type '.*' is not supported"
        ) as e:
            read_model_config(tmp_path)
        assert str(e.value).count(". ") == 0
        return
    if any(each in name for each in QUANTIZED):
        with pytest.raises(ModelError, match="not an MLX format; .* `mlx_lm.convert -q`"):
            read_model_config(tmp_path)
        return
    parsed = read_config(read_model_config(tmp_path))
    assert parsed.ignored_fields == ()
    if "quantization" in config:
        _, formats = random_tensors(read_model_config(tmp_path))
        assert {format.bits for format in formats.values()} == {4, 8}
    _, transformers = import_references()
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    text = theirs.get_text_config()
    for field in SIZES:
        if parsed.kv_shapes and field in ("num_key_value_heads", "head_dim"):
            continue  # transformers has them by layer
        if field == "head_dim" and not hasattr(text, field):
            continue  # derived
        expected = getattr(theirs if field == "tie_word_embeddings" else text, field)
        assert getattr(parsed, field) == expected, field
    rope = text.rope_parameters.get("full_attention", text.rope_parameters)
    assert parsed.rope_theta == rope["rope_theta"]
    scaling = parsed.rope_scaling
    assert rope["rope_type"] == (scaling.rope_type if scaling else "default")
    if parsed.experts is None:
        assert parsed.intermediate_size == text.intermediate_size
    else:
        assert parsed.experts.num_experts == text.num_experts
        top_k = getattr(text, "num_experts_per_tok", None) or text.top_k_experts
        assert parsed.experts.top_k == top_k
        width = getattr(text, "moe_intermediate_size", None) or text.intermediate_size
        assert parsed.experts.intermediate_size == width
        assert parsed.experts.norm_topk_prob is getattr(text, "norm_topk_prob", True)
    if parsed.delta_net is not None:
        kinds = [
            "linear_attention" if parsed.has_delta_net(i) else "full_attention"
            for i in range(parsed.num_hidden_layers)
        ]
        assert kinds == text.layer_types
