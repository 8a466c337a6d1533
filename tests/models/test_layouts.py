"""Layouts of checkpoints: names and shapes of transformers, the Hub, mlx_lm and mlx-vlm."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from tests.models import parity
from tests.models.parity import MODELS, SIZES, delta_net, experts
from tests.models.support import (
    arrays_of,
    assert_same_arrays,
    import_references,
    random_ids,
    sequence_logits,
    transformers_logits,
    write_checkpoint,
)
from tests.support import as_numpy
from tiny_llm.models.checkpoint.weights import read_checkpoint
from tiny_llm.models.families import decoder
from tiny_llm.models.loading import serving_model

Tensors = dict[str, mx.array]


@pytest.fixture(scope="module", autouse=True)
def _references():
    import_references()


def reference(name: str, **changes: Any) -> Any:
    class_name, fields = MODELS[name]
    return parity.random_model(class_name, {**SIZES, **fields, **changes})


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def state_of(theirs: Any) -> Tensors:
    """Tensors of a model in memory, without transformers' conversion on saving."""
    return {name: mx.array(x.numpy()) for name, x in theirs.state_dict().items()}


def renamed(tensors: Tensors, prefixes: dict[str, str]) -> Tensors:
    names = {}
    for name in tensors:
        new = name
        for prefix, other in prefixes.items():
            new = other + new.removeprefix(prefix) if new.startswith(prefix) else new
        names[new] = tensors[name]
    return names


MLX_PREFIXES = {
    "model.language_model.": "language_model.model.",
    "lm_head.": "language_model.lm_head.",
    "model.visual.": "vision_tower.",
    "model.vision_tower.": "vision_tower.",
    "model.embed_vision.": "embed_vision.",
}


def hub_experts(tensors: Tensors) -> Tensors:
    """Experts X×E×2I and X×I×E."""
    return {n: x.swapaxes(1, 2) if ".experts." in n else x for n, x in tensors.items()}


def mlx_gemma4(tensors: Tensors) -> Tensors:
    converted = {}
    for name, tensor in renamed(tensors, MLX_PREFIXES).items():
        path, _, kind = name.rpartition("experts.")
        if kind == "gate_up_proj":
            for part, half in zip(("gate", "up"), mx.split(tensor, 2, axis=1), strict=True):
                converted[f"{path}experts.switch_glu.{part}_proj.weight"] = half
        elif kind == "down_proj":
            converted[f"{path}experts.switch_glu.down_proj.weight"] = tensor
        else:
            converted[name] = tensor
    return converted


def with_unused_keys(tensors: Tensors) -> Tensors:
    """Hugging Face's checkpoints of Gemma 4 have keys and values of layers that share others'."""
    path = "model.language_model.layers.6.self_attn"
    unused = {f"{path}.{name}_proj.weight": mx.ones((2, 2)) for name in "kv"}
    return {**tensors, **unused, f"{path}.k_norm.weight": mx.ones(3)}


# (model, conversion of the tensors that transformers saves).
LAYOUTS: dict[str, tuple[str, Callable[[Tensors], Tensors]]] = {
    "qwen3_vl, mlx-vlm": ("qwen3_vl", lambda tensors: renamed(tensors, MLX_PREFIXES)),
    "qwen3_vl_moe, mlx-vlm": ("qwen3_vl_moe", lambda tensors: renamed(tensors, MLX_PREFIXES)),
    "qwen3_vl_moe, Hub": ("qwen3_vl_moe", hub_experts),
    "gemma4-e2b, Hub": ("gemma4-e2b", with_unused_keys),
    "gemma4-e2b, mlx": ("gemma4-e2b", lambda tensors: mlx_gemma4(with_unused_keys(tensors))),
    "gemma4-moe, mlx": ("gemma4-moe", mlx_gemma4),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_have_equal_arrays(tmp_path, layout):
    name, convert = LAYOUTS[layout]
    class_name, fields = MODELS[name]
    if not class_name.endswith(parity.NESTED):
        class_name += parity.NESTED
    theirs = parity.random_model(class_name, {**SIZES, **fields, "pad_token_id": 0})
    theirs.save_pretrained(tmp_path)
    config, tensors = config_of(tmp_path), dict(mx.load(str(tmp_path / "model.safetensors")))
    expected = arrays_of(tmp_path, config)
    mx.eval(expected)
    converted = convert(tensors)
    weights = read_checkpoint(write_checkpoint(tmp_path, config, converted), config)
    assert_same_arrays(dict(tree_flatten(weights.parameters())), expected)
    assert weights.num_skipped >= sum("vis" in name for name in converted) > 0
    ids = random_ids(77)
    ours = sequence_logits(serving_model("it", weights, page_size=16), ids)
    np.testing.assert_allclose(as_numpy(ours), transformers_logits(theirs, ids), atol=1e-4)


def test_fused_experts_of_qwen3_moe(tmp_path):
    """transformers 5 stores `experts.gate_up_proj`, X×2I×E, without its conversion on saving."""
    theirs = reference("qwen3_moe")
    theirs.save_pretrained(tmp_path)
    config, tensors = config_of(tmp_path), state_of(theirs)
    assert tensors["model.layers.0.mlp.experts.gate_up_proj"].shape == (5, 48, 40)
    write_checkpoint(tmp_path / "fused", config, tensors)
    assert_same_arrays(arrays_of(tmp_path / "fused", config), arrays_of(tmp_path, config))


def test_gemma3_saved_by_mlx_lm(tmp_path):
    """mlx_lm stores norms as w, too."""
    from mlx_lm.utils import load_model

    reference("gemma3", pad_token_id=None, sliding_window_pattern=2).save_pretrained(tmp_path)
    config = config_of(tmp_path)
    stored = dict(tree_flatten(load_model(tmp_path)[0].parameters()))
    write_checkpoint(tmp_path / "mlx", config, stored)
    assert_same_arrays(arrays_of(tmp_path / "mlx", config), arrays_of(tmp_path, config))


# Models compared with mlx_lm, which ignores `layer_types`: every fourth layer has full attention.
MLX_MODELS = [
    "qwen3_5",
    "qwen3_next",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("qwen3_5_text", "qwen3_5-tied", "qwen3_5_moe_text", "qwen3_5_moe")
    ),
]


@pytest.mark.parametrize("name", MLX_MODELS)
def test_hybrid_layouts_have_equal_arrays_and_mlx_lm_logits(tmp_path, name):
    from mlx_lm.utils import load_model, save_model

    theirs = reference(name)
    theirs.save_pretrained(tmp_path)
    config = config_of(tmp_path)
    # mlx_lm supports only the name without "_text"
    config["model_type"] = config["model_type"].removesuffix("_text")
    tensors = dict(mx.load(str(tmp_path / "model.safetensors")))
    if name == "qwen3_next":  # mlx_lm reads the older layout of `rope_parameters`
        for field in ("rope_theta", "partial_rotary_factor"):
            config[field] = config["rope_parameters"][field]
        config["mlp_only_layers"], config["decoder_sparse_step"] = [], 1
    elif "moe" in name:  # stacked experts, as in the Hub's checkpoints
        tensors = state_of(theirs)
        assert any(path.endswith("layers.0.mlp.experts.gate_up_proj") for path in tensors)
    hub = write_checkpoint(tmp_path / "hub", config, {**tensors, "mtp.fc.weight": mx.ones((4, 4))})
    mlx_model, _ = load_model(hub)
    save_model(tmp_path / "mlx", mlx_model)
    (tmp_path / "mlx" / "config.json").write_text(json.dumps(config))
    expected = arrays_of(tmp_path, config)
    for folder in (hub, tmp_path / "mlx"):
        assert_same_arrays(arrays_of(folder, config), expected)
    assert_mlx_lm_logits(mlx_model, tmp_path / "mlx", random_ids(77))


def assert_mlx_lm_logits(theirs: Any, folder: Path, ids: list[int]) -> None:
    model = serving_model("it", read_checkpoint(folder, config_of(folder)), 32)
    expected = as_numpy(theirs(mx.array([ids]))[0])
    np.testing.assert_allclose(as_numpy(sequence_logits(model, ids)), expected, atol=5e-4)


def test_quantized_qwen3_next_of_mlx_lm(tmp_path):
    """MLX checkpoints have fused projections and 8-bit gates."""
    from mlx_lm.models import qwen3_next
    from mlx_lm.utils import quantize_model, save_model

    config = {
        **SIZES,
        "hidden_size": 64,
        "intermediate_size": 128,
        **parity.heads(4, 2, 16),
        **delta_net(2, 4, 16, 8),
        **experts(5, 2, 32, shared_expert_intermediate_size=64, norm_topk_prob=True),
        "model_type": "qwen3_next",
        "mlp_only_layers": [2],
        "decoder_sparse_step": 1,
        "rope_theta": 1e4,
        "partial_rotary_factor": 0.25,
    }
    theirs = qwen3_next.Model(qwen3_next.ModelArgs.from_dict(config))
    theirs, config = quantize_model(theirs, config, 32, 4, quant_predicate=theirs.quant_predicate)
    save_model(tmp_path, theirs)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_mlx_lm_logits(theirs, tmp_path, random_ids(50))


def test_bfloat16_norms_multiply_by_one_plus_weight_in_float32(tmp_path, monkeypatch):
    """Rounding 1 + w to bfloat16, at load or in a kernel, would double the divergence."""
    theirs, ids = reference("qwen3_5-wide-heads").bfloat16(), random_ids(200)
    theirs.save_pretrained(tmp_path)
    expected = log_softmax(transformers_logits(theirs, ids))

    def divergence() -> float:
        model = serving_model("it", read_checkpoint(tmp_path, config_of(tmp_path)), 32)
        assert model.dtype == mx.bfloat16
        ours = log_softmax(as_numpy(sequence_logits(model, ids)))
        return (np.exp(expected) * (expected - ours)).sum(-1).mean()

    actual = divergence()
    monkeypatch.setattr(
        decoder, "norm_weight", lambda config, layer, dtype: layer.weight.astype(dtype)
    )
    assert actual < 0.75 * divergence()


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def test_training_model_of_the_demo(tmp_path):
    """The training model has the engine's logits for two documents in one row."""
    import torch

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
    fields = config_json(config, 0, 1) | {"torch_dtype": "float32"}
    write_checkpoint(tmp_path, fields, weights)
    model = serving_model("it", read_checkpoint(tmp_path, fields), 32)
    for ids, logits in zip(documents, expected, strict=False):
        np.testing.assert_allclose(as_numpy(sequence_logits(model, ids)), logits, atol=1e-4)


def mxfp4_tensors(theirs: Any, layout: str) -> Tensors:
    """A gpt-oss model's tensors with MXFP4 experts; `theirs` gets the dequantized experts."""
    import torch

    tensors = state_of(theirs)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        matrices = tensors.pop(name).swapaxes(1, 2)  # X×O×I
        words, scales = mx.quantize(matrices, mode="mxfp4")
        exact = mx.dequantize(words, scales, mode="mxfp4", dtype=mx.float32).swapaxes(1, 2)
        theirs.state_dict()[name].copy_(torch.from_numpy(np.array(exact)))
        X, O, _ = words.shape
        tensors[f"{name}_blocks"] = words.view(mx.uint8).reshape(X, O, -1, 16)
        tensors[f"{name}_scales"] = scales
    if layout == "mlx":
        gpt_oss = pytest.importorskip("mlx_lm.models.gpt_oss")
        tensors = gpt_oss.Model.sanitize(None, tensors)
    return tensors


QUANTIZATION = {
    "hugging_face": {"quantization_config": {"quant_method": "mxfp4"}},
    "mlx": {"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}},
}


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("layout", QUANTIZATION)
def test_mxfp4_experts_of_gpt_oss(tmp_path, layout, dtype):
    theirs = reference("gpt_oss", hidden_size=96, intermediate_size=160)
    integers = mx.uint8, mx.uint32
    tensors = {
        name: x if x.dtype in integers else x.astype(dtype)
        for name, x in mxfp4_tensors(theirs, layout).items()
    }
    config = {**theirs.config.to_dict(), **QUANTIZATION[layout]}
    mx.save_safetensors(str(tmp_path / "model.safetensors"), tensors)
    model = serving_model("gpt-oss", read_checkpoint(tmp_path, config), page_size=16)
    # Activations exceed float16, so a float16 checkpoint runs in bfloat16, too.
    assert model.supports_graph_capture == (dtype != mx.float32)
    ids = random_ids(77)
    actual = as_numpy(sequence_logits(model, ids, [30, 31, 32, 77]))
    expected = transformers_logits(theirs, ids)
    # Routing is discontinuous, so 16-bit logits of single tokens may differ more.
    error = np.abs(actual - expected)
    if dtype == mx.float32:
        assert error.max() < 1e-4
    else:
        assert np.median(error) < 0.01 * np.abs(expected).max()
