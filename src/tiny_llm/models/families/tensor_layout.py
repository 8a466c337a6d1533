"""Checkpoint conversion to the tensor names and shapes of MLX's text models.

All families:

    model.language_model.*                     model.*
    language_model.model.*, *.mtp.*            model.*, mtp.*
    layers.*, language_model.layers.*          model.layers.*, also embed_tokens and norm

All families with experts:

    experts.0.up_proj, experts.1.up_proj, …    stacked: switch_mlp.up_proj
    experts.gate_up_proj                       split: switch_mlp.gate_proj, up_proj; in Gemma 4:
                                               experts.switch_glu.gate_proj, up_proj

Phi-3:

    qkv_proj, gate_up_proj                     split: q_proj, k_proj, v_proj; gate_proj, up_proj

gpt-oss:

    mlp.router, mlp.experts.gate_proj, …       mlp.gate, mlp.switch_mlp.gate_proj, …
    experts.gate_up_proj_blocks, _scales       split: switch_mlp.gate_proj, up_proj

Hybrid families:

    in_proj_qkvz, in_proj_ba                   split: in_proj_qkv, in_proj_z; in_proj_b, in_proj_a
    conv1d C×1×K (Hugging Face)                C×K×1 (MLX), for C channels and kernel size K
    norm w, applied as 1 + w (Hugging Face)    1 + w (MLX), in float32

The last two rows apply if the convolution has Hugging Face's shape. Gemma 3's norms are stored as w
in both layouts and become 1 + w.
"""

from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any

import mlx.core as mx

from ...kernels.prepack import QUANTIZED_ARRAYS
from .config import DecoderConfig, DeltaNetConfig
from .experts import PROJECTIONS

# Name prefixes in checkpoints -> replacements; the first match applies.
TEXT_PREFIXES = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "language_model.mtp.": "mtp.",
    # Embedding models are saved without the LM head and the "model." prefix.
    **{f"language_model.{part}.": f"model.{part}." for part in ("embed_tokens", "layers", "norm")},
    **{f"{part}.": f"model.{part}." for part in ("embed_tokens", "layers", "norm")},
}
VISION_PREFIXES = (
    *("model.visual.", "visual.", "vision_tower.", "model.vision_tower."),
    *("multi_modal_projector.", "model.multi_modal_projector.", "vision_embedder."),
    *("model.vision_embedder.", "audio_tower.", "model.audio_tower.", "embed_vision."),
    *("model.embed_vision.", "embed_audio.", "model.embed_audio."),
)
MTP_PREFIX = "mtp."  # multi-token prediction layer
# Norms that Hugging Face stores as w and applies as 1 + w.
ZERO_CENTERED_NORMS = (
    *("input_layernorm", "post_attention_layernorm", "q_norm", "k_norm", "model.norm", "mtp.norm"),
    *("pre_fc_norm_embedding", "pre_fc_norm_hidden"),
    *("pre_feedforward_layernorm", "post_feedforward_layernorm"),
)

# gpt-oss's names in MLX checkpoints -> names of other families.
GPT_OSS_PATHS = {
    ".mlp.router.": ".mlp.gate.",
    **{f".mlp.experts.{name}.": f".mlp.switch_mlp.{name}." for name in PROJECTIONS},
}


def text_tensor_name(name: str) -> str:
    for path, replacement in GPT_OSS_PATHS.items():
        name = name.replace(path, replacement)
    for prefix, replacement in TEXT_PREFIXES.items():
        if name.startswith(prefix):
            return replacement + name.removeprefix(prefix)
    return name


def text_tensor_names(stored: Iterable[str], config: DecoderConfig) -> dict[str, str]:
    """Maps the names of MLX's text model to tensor names in the checkpoint."""
    names: dict[str, str] = {}
    unused = unused_tensors(config)
    for name in stored:
        text_name = text_tensor_name(name)
        is_unused_mtp = text_name.startswith(MTP_PREFIX) and not config.has_mtp
        if name.startswith(VISION_PREFIXES) or is_unused_mtp or text_name in unused:
            continue
        other = names.setdefault(text_name, name)
        if other != name:
            raise ValueError(f"{name} and {other} both map to {text_name} of the text model")
    return names


def unused_tensors(config: DecoderConfig) -> set[str]:
    """Tensors in official checkpoints for layers that read an earlier layer's keys and values."""
    return {
        f"model.layers.{index}.self_attn.{part}.{array}"
        for index in range(config.num_hidden_layers)
        for part in ("k_proj", "v_proj", "k_norm")
        for array in QUANTIZED_ARRAYS
        if config.kv_source(index) != index
    }


def convert_layout(weights: dict[str, mx.array], config: DecoderConfig) -> None:
    """Converts tensors, except per-expert matrices, to MLX's layout in place.

    `config` describes the full model, even for a shard.
    """
    if config.model_type == "gpt_oss":
        _convert_gpt_oss(weights, config)
    else:
        _split_gate_up(weights, config)
    _split_rows(weights, config)
    if config.delta_net is not None:
        split_fused_projections(weights, config.delta_net)
        if _convert_convolutions(weights, config.delta_net):
            _add_one_to_norms(weights)
    elif config.zero_centered_norms:
        _add_one_to_norms(weights)


def split_names(path: str) -> tuple[str, ...]:
    """Paths of the parts of a fused layer; (path,) for any other layer."""
    parent, _, name = path.rpartition(".")
    parts = {
        "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
        "in_proj_ba": ("in_proj_b", "in_proj_a"),
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
    }
    return tuple(f"{parent}.{part}" for part in parts[name]) if name in parts else (path,)


def converted_quantization(quantization: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Renames the layers in a config's `quantization` as their tensors."""
    if quantization is None:
        return None
    return {
        part: value
        for path, value in quantization.items()
        for part in split_names(text_tensor_name(f"{path}.").removesuffix("."))
    }


def stack_experts(weights: dict[str, mx.array], config: DecoderConfig) -> None:
    """Stacks matrices such as `mlp.experts.3.up_proj.weight`, or their shards, in place."""
    number = 0 if config.experts is None else config.experts.num_experts
    for experts, target in _moe_layers(config):
        for name in PROJECTIONS:
            for part in QUANTIZED_ARRAYS:
                all_names = (f"{experts}.{e}.{name}.{part}" for e in range(number))
                names = list(takewhile(weights.__contains__, all_names))
                if len(names) == number:
                    stacked = mx.stack([weights.pop(each) for each in names])
                    weights[f"{target}.{name}.{part}"] = stacked


def _moe_layers(config: DecoderConfig) -> list[tuple[str, str]]:
    """(Hugging Face's path, MLX's path) of each layer's experts."""
    if config.experts is None:
        return []
    layers = [f"model.layers.{index}" for index in sorted(config.experts.layers)]
    if config.has_mtp:
        layers.append("mtp.layers.0")
    if config.experts.parallel_mlp:
        return [(f"{layer}.experts", f"{layer}.experts.switch_glu") for layer in layers]
    return [(f"{layer}.mlp.experts", f"{layer}.mlp.switch_mlp") for layer in layers]


def _split_gate_up(weights: dict[str, mx.array], config: DecoderConfig) -> None:
    """Splits gate_up_proj X×2I×E; moves it and down_proj X×E×I to `switch_mlp`.

    Qwen3-VL's checkpoints on the hub have the transposed matrices, X×E×2I and X×I×E.
    """
    for experts, target in _moe_layers(config):
        assert config.experts is not None
        E, I = config.hidden_size, config.experts.intermediate_size
        for fused, O, inputs in (("gate_up_proj", 2 * I, E), ("down_proj", E, I)):
            matrices = weights.get(f"{experts}.{fused}")
            if matrices is None or sorted(matrices.shape[1:]) != sorted((O, inputs)):
                continue  # a wrong shape is reported later, under the fused name
            del weights[f"{experts}.{fused}"]
            is_vl = config.model_type.startswith("qwen3_vl")
            if is_vl if inputs == O else matrices.shape[1] == inputs:
                matrices = matrices.swapaxes(1, 2)
            parts = ("gate_proj", "up_proj") if fused == "gate_up_proj" else (fused,)
            for part, matrix in zip(parts, mx.split(matrices, len(parts), axis=1), strict=True):
                weights[f"{target}.{part}.weight"] = matrix


def _split_rows(weights: dict[str, mx.array], config: DecoderConfig) -> None:
    """Splits Phi-3's fused projections, which concatenate the rows of their parts."""
    queries, keys = (
        heads * config.head_dim
        for heads in (config.num_attention_heads, config.num_key_value_heads)
    )
    ends = {
        "self_attn.qkv_proj": [queries, queries + keys],
        "mlp.gate_up_proj": [config.intermediate_size],
    }
    for index in range(config.num_hidden_layers):
        for fused, splits in ends.items():
            path = f"model.layers.{index}.{fused}"
            for part in QUANTIZED_ARRAYS:
                if (rows := weights.pop(f"{path}.{part}", None)) is not None:
                    for name, each in zip(split_names(path), mx.split(rows, splits), strict=True):
                        weights[f"{name}.{part}"] = each


def _convert_gpt_oss(weights: dict[str, mx.array], config: DecoderConfig) -> None:
    """Converts Hugging Face's experts, whose gate and up rows alternate.

    `_blocks`, X×O×(I/32)×16 bytes, have the bits of MLX's MXFP4 weights, X×O×(I/8) words. Matrices
    without a suffix are transposed: X×I×O.
    """
    suffixes = {"": "weight", "_blocks": "weight", "_scales": "scales", "_bias": "bias"}
    for experts, target in _moe_layers(config):
        for fused, parts in (
            ("gate_up_proj", ("gate_proj", "up_proj")),
            ("down_proj", ("down_proj",)),
        ):
            for suffix, kind in suffixes.items():
                array = weights.pop(f"{experts}.{fused}{suffix}", None)
                if array is None:
                    continue
                if suffix == "_blocks":
                    array = array.view(mx.uint32).flatten(-2)
                elif suffix == "":
                    array = array.swapaxes(1, 2)
                for index, part in enumerate(parts):
                    rows = mx.contiguous(array[:, index :: len(parts)])
                    weights[f"{target}.{part}.{kind}"] = rows


def split_fused_projections(weights: dict[str, mx.array], config: DeltaNetConfig) -> None:
    """Splits qwen3_next's fused projections, whose rows are grouped by key head.

    A group holds the rows for a key head and its value heads: q, k, v and z; or b and a.
    """
    values = config.num_value_heads // config.num_key_heads  # value heads per key head
    D_k, D_v = config.key_head_dim, config.value_head_dim
    sizes = {"in_proj_qkvz": (D_k, D_k, values * D_v, values * D_v), "in_proj_ba": (values, values)}
    for index in config.layers:
        for fused, widths in sizes.items():
            path = f"model.layers.{index}.linear_attn.{fused}"
            for part in QUANTIZED_ARRAYS:
                rows = weights.get(f"{path}.{part}")
                if rows is None or rows.shape[0] != config.num_key_heads * sum(widths):
                    continue  # a wrong shape is reported later, under the fused name
                del weights[f"{path}.{part}"]
                *first, last = _ungroup(rows, config.num_key_heads, widths)
                first_path, last_path = split_names(path)
                weights[f"{first_path}.{part}"] = mx.concatenate(first)
                weights[f"{last_path}.{part}"] = last


def _ungroup(rows: mx.array, groups: int, widths: Iterable[int]) -> list[mx.array]:
    """Splits rows (G·Σwidths)×W, grouped by G heads, into one array per width."""
    grouped = rows.reshape(groups, -1, rows.shape[-1])
    parts, start = [], 0
    for width in widths:
        parts.append(grouped[:, start : start + width].reshape(groups * width, -1))
        start += width
    return parts


def _convert_convolutions(weights: dict[str, mx.array], config: DeltaNetConfig) -> bool:
    """Converts convolutions in Hugging Face's layout; returns whether there are any."""
    shape = (config.conv_channels, 1, config.conv_kernel_dim)
    names = [f"model.layers.{index}.linear_attn.conv1d.weight" for index in config.layers]
    convolutions = [name for name in names if name in weights and weights[name].shape == shape]
    for name in convolutions:
        weights[name] = weights[name].swapaxes(1, 2)
    return bool(convolutions)


def _add_one_to_norms(weights: dict[str, mx.array]) -> None:
    for name, weight in weights.items():
        if name.removesuffix(".weight").endswith(ZERO_CENTERED_NORMS):
            weights[name] = weight.astype(mx.float32) + 1  # 16 bits would round the sum
