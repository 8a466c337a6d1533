"""Parity of hybrid families with transformers and mlx_lm.

Comparisons are in float32: in bfloat16, transformers' chunked and recurrent forms differ by up to
0.1. As in real models, decays are 0.1 to 1. With decays near 0, outputs of the delta rule are
tiny, and their norm magnifies rounding errors in all implementations, the more the smaller its
epsilon.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from tests.models.support import (
    greedy_tokens,
    import_references,
    random_ids,
    sequence_logits,
    transformers_logits,
)
from tests.support import as_numpy, assert_same_bits
from tiny_llm.models.checkpoint.weights import read_checkpoint
from tiny_llm.models.families import decoder
from tiny_llm.models.serving_model import serving_model

# torch and transformers are imported by the fixture, because importing takes seconds.
torch: Any
transformers: Any


@pytest.fixture(scope="module", autouse=True)
def _import_references() -> None:
    global torch, transformers
    torch, transformers = import_references()


SIZES = {
    "vocab_size": 211,
    "hidden_size": 40,
    "intermediate_size": 72,
    "num_hidden_layers": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}
MIXTURE = {
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 20,
}
VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 40,
    "num_position_embeddings": 16,
}
DENSE, DENSE_NESTED = "Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"
MOE, MOE_NESTED = "Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"
NEXT = "Qwen3NextForCausalLM"
CONFIG_CLASSES = {
    DENSE: "Qwen3_5TextConfig",
    DENSE_NESTED: "Qwen3_5Config",
    MOE: "Qwen3_5MoeTextConfig",
    MOE_NESTED: "Qwen3_5MoeConfig",
    NEXT: "Qwen3NextConfig",
}


def attention(H_q: int, H: int, D: int, partial: float = 0.25, **rope: Any) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": partial, **rope}
    return {
        "num_attention_heads": H_q,
        "num_key_value_heads": H,
        "head_dim": D,
        "rope_parameters": rope,
    }


def delta_net(H_k: int, H_v: int, D_k: int, D_v: int, K: int = 4) -> dict[str, Any]:
    return {
        "linear_num_key_heads": H_k,
        "linear_num_value_heads": H_v,
        "linear_key_head_dim": D_k,
        "linear_value_head_dim": D_v,
        "linear_conv_kernel_dim": K,
    }


def layer_types(pattern: str) -> dict[str, Any]:
    names = {"l": "linear_attention", "f": "full_attention"}
    return {"num_hidden_layers": len(pattern), "layer_types": [names[each] for each in pattern]}


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
TIED = {"tie_word_embeddings": True}

# (model class of transformers, config in addition to `SIZES`). The models have 1, 2 or 4 value
# heads per key head.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_5_text": (DENSE, {**attention(4, 2, 16), **delta_net(2, 4, 12, 10)}),
    "tied": (DENSE, {**attention(6, 3, 24), **delta_net(3, 3, 10, 14), **TIED}),
    "one-key-head": (DENSE, {**attention(2, 1, 20, 0.5), **delta_net(1, 4, 16, 8)}),
    "wide-heads": (DENSE, {**attention(2, 2, 40), **delta_net(2, 2, 128, 64), **layer_types("lf")}),
    "layer-types": (
        DENSE,
        {**attention(4, 1, 16, 1.0), **delta_net(2, 8, 14, 10, K=3), **layer_types("fllfl")},
    ),
    "biases": (
        DENSE,
        {**attention(5, 5, 8, 0.75), **delta_net(5, 5, 9, 11, K=2), "attention_bias": True, **TIED},
    ),
    "yarn": (DENSE, {**attention(4, 2, 32, **YARN), **delta_net(2, 4, 12, 10)}),
    "qwen3_5": (DENSE_NESTED, {**attention(4, 2, 16), **delta_net(2, 4, 20, 18), **TIED}),
    "qwen3_5_moe_text": (MOE, {**attention(4, 2, 12, 0.5), **delta_net(2, 4, 12, 10), **MIXTURE}),
    "qwen3_5_moe": (
        MOE_NESTED,
        {**attention(4, 4, 16), **delta_net(3, 3, 8, 14), **MIXTURE, "num_experts_per_tok": 5},
    ),
    "qwen3_next": (NEXT, {**attention(4, 2, 16), **delta_net(2, 4, 12, 10), **MIXTURE}),
    "qwen3_next-mlp": (
        NEXT,
        {
            **attention(2, 1, 24, 0.5),
            **delta_net(1, 4, 10, 12, K=5),
            **MIXTURE,
            **TIED,
            "num_experts_per_tok": 1,
            "mlp_only_layers": [1],
            "norm_topk_prob": False,
        },
    ),
}
QUICK = ("qwen3_5", "layer-types", "qwen3_next")
CHUNKS = ([1, 2, 5, 64, 65, 200, 300], [128, *range(129, 140), 299, 300])


def cases(names: Iterable[str]) -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


def random_model(name: str) -> Any:
    class_name, fields = MODELS[name]
    sizes = {**SIZES, **fields}
    if class_name in (MOE, MOE_NESTED):
        del sizes["intermediate_size"]
    config_class = getattr(transformers, CONFIG_CLASSES[class_name])
    if class_name in (DENSE_NESTED, MOE_NESTED):
        tied = sizes.get("tie_word_embeddings", False)
        config = config_class(text_config=sizes, vision_config=VISION, tie_word_embeddings=tied)
    else:
        config = config_class(**sizes)
    torch.manual_seed(0)
    model = getattr(transformers, class_name)(config)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.copy_(random_parameter(path, parameter))
    return model.eval()


def random_parameter(path: str, like: Any) -> Any:
    noise = torch.randn_like(like)
    if path.endswith("linear_attn.norm.weight"):
        return 1 + 0.2 * noise
    if "norm" in path:
        return 0.2 * noise  # around 0, because these norms multiply by 1 + weight
    if path.endswith("A_log"):
        return torch.empty_like(like).uniform_(1, 16).log()
    if path.endswith("dt_bias"):
        return torch.empty_like(like).uniform_(-7, -2)
    return 0.3 * noise if like.ndim == 1 else noise * like.shape[-1] ** -0.5


@pytest.fixture(scope="module", params=cases(MODELS))
def model(request, tmp_path_factory) -> tuple[Any, Path]:
    """(transformers model, its folder)."""
    theirs, folder = random_model(request.param), tmp_path_factory.mktemp(request.param)
    theirs.save_pretrained(folder)
    return theirs, folder


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def our_model(folder: Path, attention_backend: str = "paged") -> Any:
    weights = read_checkpoint(folder, config_of(folder))
    return serving_model(folder.name, weights, 32, attention_backend)


@pytest.mark.parametrize("backend", ["paged", "reference"])
def test_logits_float32(model, backend):
    theirs, folder = model
    ours, ids = our_model(folder, backend), random_ids(300)
    expected = transformers_logits(theirs, ids)
    np.testing.assert_allclose(as_numpy(sequence_logits(ours, ids)), expected, atol=1e-4)


@pytest.mark.parametrize("ends", CHUNKS, ids=str)
def test_chunked_logits_match_transformers(model, ends):
    theirs, folder = model
    ids = random_ids(300)
    chunked = sequence_logits(our_model(folder), ids, ends)
    np.testing.assert_allclose(as_numpy(chunked), transformers_logits(theirs, ids), atol=1e-4)


def test_bfloat16_norms_multiply_by_one_plus_weight_in_float32(tmp_path, monkeypatch):
    """Rounding 1 + w to bfloat16, at load or in a kernel, would double the divergence."""
    theirs, ids = random_model("wide-heads").bfloat16(), random_ids(200)
    theirs.save_pretrained(tmp_path)
    expected = log_softmax(transformers_logits(theirs, ids))

    def divergence() -> float:
        model = our_model(tmp_path)
        assert model.dtype == mx.bfloat16
        ours = log_softmax(as_numpy(sequence_logits(model, ids).astype(mx.float32)))
        return (np.exp(expected) * (expected - ours)).sum(-1).mean()

    actual = divergence()
    monkeypatch.setattr(
        decoder, "norm_weight", lambda config, layer, dtype: layer.weight.astype(dtype)
    )
    assert actual < 0.75 * divergence()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def test_greedy_tokens(model):
    theirs, folder = model
    for prompt in (random_ids(9), random_ids(130)):
        answer = greedy_tokens(our_model(folder), prompt, 64)
        expected = transformers_logits(theirs, [*prompt, *answer])[len(prompt) - 1 : -1].argmax(-1)
        assert answer == expected.tolist()


# Models compared with mlx_lm, which ignores `layer_types`: every fourth layer has full attention.
MLX_MODELS = ("qwen3_5_text", "tied", "qwen3_5", "qwen3_5_moe_text", "qwen3_5_moe", "qwen3_next")


@pytest.mark.parametrize("model", cases(MLX_MODELS), indirect=True)
def test_layouts_have_equal_arrays_and_mlx_lm_logits(model, tmp_path):
    from mlx_lm.utils import load_model, save_model

    theirs, folder = model
    config = config_of(folder)
    # mlx_lm supports only the name without "_text"
    config["model_type"] = config["model_type"].removesuffix("_text")
    tensors = dict(mx.load(str(folder / "model.safetensors")))
    if config["model_type"] == "qwen3_next":  # mlx_lm reads the older layout of `rope_parameters`
        for name in ("rope_theta", "partial_rotary_factor"):
            config[name] = config["rope_parameters"][name]
        config["mlp_only_layers"], config["decoder_sparse_step"] = [], 1
    elif "moe" in config["model_type"]:  # stacked experts, as in the Hub's checkpoints
        tensors = {name: mx.array(x.numpy()) for name, x in theirs.state_dict().items()}
        assert "model.layers.0.mlp.experts.gate_up_proj" in map(without_prefix, tensors)
    tensors["mtp.fc.weight"] = mx.ones((4, 4))
    save_checkpoint(tmp_path / "hub", config, tensors)
    mlx_model, _ = load_model(tmp_path / "hub")
    save_model(tmp_path / "mlx", mlx_model)
    save_checkpoint(tmp_path / "mlx", config)

    layouts = folder, tmp_path / "hub", tmp_path / "mlx"
    arrays = [dict(tree_flatten(read_checkpoint(each, config))) for each in layouts]
    for name in set().union(*arrays):
        for other in arrays[1:]:
            assert_same_bits(other[name], arrays[0][name], name)

    ids = random_ids(77)
    logits = sequence_logits(our_model(tmp_path / "mlx"), ids)
    expected = as_numpy(mlx_model(mx.array([ids]))[0])
    np.testing.assert_allclose(as_numpy(logits), expected, atol=5e-4)


def without_prefix(name: str) -> str:
    return name.replace("model.language_model.", "model.")


def save_checkpoint(folder: Path, config: dict[str, Any], tensors: Any = None) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if tensors is not None:
        mx.save_safetensors(str(folder / "model.safetensors"), tensors)


def test_quantized_qwen3_next_of_mlx_lm(tmp_path):
    """MLX checkpoints have fused projections and 8-bit gates."""
    from mlx_lm.models import qwen3_next
    from mlx_lm.utils import quantize_model, save_model

    sizes = {**SIZES, "hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
    config = {
        **sizes,
        **delta_net(2, 4, 16, 8),
        **MIXTURE,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "model_type": "qwen3_next",
        "mlp_only_layers": [2],
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.25,
    }
    mx.random.seed(0)
    theirs = qwen3_next.Model(qwen3_next.ModelArgs.from_dict(config))
    theirs, config = quantize_model(theirs, config, 32, 4, quant_predicate=theirs.quant_predicate)
    save_model(tmp_path, theirs)
    save_checkpoint(tmp_path, config)
    ids = random_ids(50)
    expected = as_numpy(theirs(mx.array([ids]))[0])
    actual = as_numpy(sequence_logits(our_model(tmp_path), ids))
    np.testing.assert_allclose(actual, expected, atol=5e-4)


def test_training_model_of_the_demo(tmp_path):
    """The training model has the engine's logits for two documents in one row."""
    from scripts.demo_model.export import config_json
    from scripts.demo_model.hybrid import HybridConfig, Qwen3_5

    config = HybridConfig(64, 4, 4, 2, 32, 96, 2, 4, 24, 16, vocab_size=SIZES["vocab_size"])
    theirs = Qwen3_5(config)
    theirs.init_weights(1)
    documents, row = [random_ids(150), random_ids(90)[::-1]], torch.zeros(2, 320, dtype=torch.long)
    start = 0
    for ids in documents:
        row[0, start : start + len(ids)] = torch.tensor(ids)
        row[1, start : start + len(ids)] = torch.arange(len(ids))
        start += len(ids)
    with torch.no_grad():
        expected = theirs.logits(theirs(*row, [(1, 320)])).split([150, 90, 80])
    weights = {f"model.{name}": mx.array(p.detach()) for name, p in theirs.named_parameters()}
    for name in weights:
        if name.endswith("conv1d.weight"):
            weights[name] = weights[name].swapaxes(1, 2)
    save_checkpoint(tmp_path, config_json(config, 0, 1) | {"torch_dtype": "float32"}, weights)
    model = our_model(tmp_path)
    for ids, logits in zip(documents, expected, strict=False):
        np.testing.assert_allclose(as_numpy(sequence_logits(model, ids)), logits, atol=1e-4)
