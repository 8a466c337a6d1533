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
# The fields that matter of configs that no package has.
OTHERS = json.loads(Path(__file__).with_name("configs.json").read_text())
# As converted by mlx-lm: MLP and router have 8 bits.
MIXED_BITS = {
    f"language_model.model.layers.{index}.{name}": {"group_size": 64, "bits": 8}
    for index in range(30)
    for name in ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "router.proj")
}
# Official configs with fields that mlx-lm's conversion adds.
CONVERTED = {
    "gemma-4-26b-a4b-it-4bit": (
        "google--gemma-4-26B-A4B",
        {"quantization": {"group_size": 64, "bits": 4, "mode": "affine", **MIXED_BITS}},
    )
}
SLIDING = "sliding_attention"
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
        sliding = {i for i, each in enumerate(theirs["layer_types"]) if each == "sliding_attention"}
        assert {i for i in range(len(theirs["layer_types"])) if parsed.window_of(i)} == sliding


def test_the_cache_has_configs():
    assert len(list(artifact_folder("configs").glob(f"*{SUFFIX}"))) > 100


@pytest.mark.parametrize("name", [*MODELS, *OTHERS, *CONVERTED])
def test_config(name, tmp_path):
    config = write_model(tmp_path, name)
    if config["model_type"] not in FAMILIES:
        with pytest.raises(ModelError, match=r"model type '\w|model type '.*' is not sup") as e:
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
    if not parsed.kv_shapes:
        rotated = int(rope.get("partial_rotary_factor", 1) * parsed.head_dim)
        assert (parsed.rotary_dim or parsed.head_dim) == rotated
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
        is_linear = [kind == "linear_attention" for kind in text.layer_types]
        assert [parsed.has_delta_net(i) for i in range(parsed.num_hidden_layers)] == is_linear
        keys = text.linear_num_key_heads * text.linear_key_head_dim
        values = text.linear_num_value_heads * text.linear_value_head_dim
        assert parsed.delta_net.conv_channels == 2 * keys + values
