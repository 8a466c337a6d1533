"""GGUF files of small random models, written as llama.cpp's converter writes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe_text": "qwen35moe",
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "gpt_oss": "gpt-oss",
}
ARCH_BY_NAME = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
# Endings of names in transformers -> of names that `gguf`'s map knows.
RENAMED = {
    "sinks": "sinks.weight",
    "layer_scalar": "layer_scalar.weight",
    "router.scale": "router.proj.scale",
    "router.per_expert_scale": "experts.down_proj.scale",
}
VOCABULARY = ["<|end|>", *map(chr, range(0x21, 0x7F)), "Ġ", "Ċ", "ab"]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def write_model(path: Path, model: Any, **options: Any) -> Path:
    """Writes a transformers model; see `write_tensors` for the options."""
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    return write_tensors(path, model.config.to_dict(), state, **options)


def write_tensors(
    path: Path,
    config: Mapping[str, Any],
    state: Mapping[str, np.ndarray],
    kind: Type = Type.F32,
    expert_kind: Type | None = None,
    split_max_tensors: int = 0,
    metadata: Sequence[tuple[str, Any]] = (),
) -> Path:
    """Writes tensors with Hugging Face's names.

    Args:
        kind: type of the matrices.
        expert_kind: type of the experts' matrices, if it differs.
        split_max_tensors: tensors per file; 0 for a single file.
        metadata: (key without architecture, number) pairs that replace those of the config.
    """
    name = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, name, split_max_tensors=split_max_tensors)
    _add_metadata(writer, config, name, dict(metadata))
    _add_tokenizer(writer, config["vocab_size"])
    names = gguf.get_tensor_name_map(ARCH_BY_NAME[name], config["num_hidden_layers"])
    for source, array in _converted(config, state):
        target = names.get_name(source, try_suffixes=(".weight", ".bias", ".scale"))
        assert target is not None, source
        is_matrix = array.ndim > 1 and not source.endswith(("conv1d.weight", ".bias"))
        written = kind if is_matrix else Type.F32
        if is_matrix and expert_kind is not None and "_exps" in target:
            written = expert_kind
        data = gguf.quants.quantize(array.astype(np.float32), written)
        writer.add_tensor(target, data, raw_dtype=written)
    factors = _rope_factors(config)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", factors)
    write_file(writer)
    return path


def write_file(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_metadata(
    writer: gguf.GGUFWriter, config: Mapping[str, Any], name: str, changed: dict[str, Any]
) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta", 1e4)}
    local = rope.get("sliding_attention")
    rope = rope.get("full_attention") or rope
    partial = rope.get("partial_rotary_factor") or 1
    numbers: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config.get("intermediate_size") or 0,
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "attention.sliding_window": config.get("sliding_window") or 0,
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.freq_base_swa": float(local["rope_theta"]) if local else 0,
        "rope.dimension_count": int(head_dim * partial),
        "expert_count": config.get("num_experts") or config.get("num_local_experts") or 0,
        "expert_used_count": config.get("num_experts_per_tok") or config.get("top_k_experts") or 0,
        "expert_feed_forward_length": config.get("moe_intermediate_size") or 0,
        "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size") or 0,
    }
    if rope.get("rope_type") in ("linear", "yarn"):
        writer.add_string(f"{name}.rope.scaling.type", rope["rope_type"])
        numbers["rope.scaling.factor"] = float(rope["factor"])
        original = rope.get("original_max_position_embeddings")
        numbers["rope.scaling.original_context_length"] = original or 0
    if "linear_num_key_heads" in config:
        H_v = config["linear_num_value_heads"]
        numbers |= {
            "ssm.conv_kernel": config["linear_conv_kernel_dim"],
            "ssm.state_size": config["linear_key_head_dim"],
            "ssm.group_count": config["linear_num_key_heads"],
            "ssm.time_step_rank": H_v,
            "ssm.inner_size": H_v * config["linear_value_head_dim"],
        }
    if name == "gpt-oss":
        numbers["expert_feed_forward_length"] = config["intermediate_size"]
    if name == "gemma4":
        numbers |= _gemma4_metadata(config)
    for key, number in {**numbers, **changed}.items():
        if isinstance(number, list):
            writer.add_array(f"{name}.{key}", number)
        elif isinstance(number, float):
            writer.add_float32(f"{name}.{key}", number)
        elif number or key in ("attention.shared_kv_layers", "embedding_length_per_layer_input"):
            writer.add_uint32(f"{name}.{key}", number)


def _gemma4_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    is_local = [each == "sliding_attention" for each in config["layer_types"]]
    layers, shared, I = len(is_local), config["num_kv_shared_layers"], config["intermediate_size"]
    others = config["per_layer_config"]
    full = others[str(is_local.index(False))]
    metadata = {
        f"{kind}{suffix}": fields["head_dim"]
        for kind in ("attention.key_length", "attention.value_length", "rope.dimension_count")
        for suffix, fields in (("", full), ("_swa", config))
    }
    metadata |= {
        "attention.sliding_window_pattern": is_local,
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": config["hidden_size_per_layer_input"],
        "final_logit_softcapping": config["final_logit_softcapping"],
    }
    if config["use_double_wide_mlp"]:
        metadata["feed_forward_length"] = [I] * (layers - shared) + [2 * I] * shared
    if "num_key_value_heads" in full:
        H = config["num_key_value_heads"]
        metadata["attention.head_count_kv"] = [
            others.get(str(index), {}).get("num_key_value_heads", H) for index in range(layers)
        ]
    return metadata


def _add_tokenizer(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    tokens = [*VOCABULARY, *(f"<unused{i}>" for i in range(vocab_size - len(VOCABULARY)))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (vocab_size - 1))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)


def _converted(
    config: Mapping[str, Any], state: Mapping[str, np.ndarray]
) -> list[tuple[str, np.ndarray]]:
    """Tensors in llama.cpp's layout, with names that `gguf`'s name map knows."""
    tensors: dict[str, np.ndarray] = {}
    for name, array in state.items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        if config["model_type"] == "gpt_oss" and ".experts." in name:
            array = array if name.endswith("_bias") else array.swapaxes(1, 2)
            path, kind = name.removesuffix("_bias"), "bias" if name.endswith("_bias") else "weight"
            parts = {"gate_proj": array[:, ::2], "up_proj": array[:, 1::2]}
            parts = parts if path.endswith("gate_up_proj") else {"down_proj": array}
            for part, rows in parts.items():
                tensors[f"{path.rpartition('.')[0]}.{part}.{kind}"] = rows
        elif config["model_type"] == "gemma4_text" and name.endswith("gate_up_proj"):
            tensors[f"{name}.weight"] = array
        elif name.endswith("experts.gate_up_proj"):
            gate, up = np.split(array, 2, axis=1)
            tensors[name.replace("gate_up_proj", "gate_proj.weight")] = gate
            tensors[name.replace("gate_up_proj", "up_proj.weight")] = up
        elif name.endswith("experts.down_proj"):
            tensors[f"{name}.weight"] = array
        else:
            for end, other in RENAMED.items():
                name = name.removesuffix(end) + other if name.endswith(end) else name
            tensors[name] = array
    if config["model_type"] in ("llama", "mistral"):
        for layer, heads in (("q_proj", "attention"), ("k_proj", "key_value")):
            for name in [each for each in tensors if f".{layer}." in each]:
                array, H = tensors[name], config[f"num_{heads}_heads"]
                halves = array.reshape(H, 2, -1, *array.shape[1:])  # the halves of each head
                tensors[name] = halves.swapaxes(1, 2).reshape(array.shape)
    if config["model_type"] == "gemma3_text":
        tensors = {name: x + 1 if "norm" in name else x for name, x in tensors.items()}
    if "linear_num_key_heads" in config:
        tensors = {
            name.replace("dt_bias", "dt_proj.bias"): _delta_net(config, name, array)
            for name, array in tensors.items()
        }
    return list(tensors.items())


def _delta_net(config: Mapping[str, Any], name: str, array: np.ndarray) -> np.ndarray:
    """A hybrid model's tensor: value heads tiled instead of grouped by key head."""
    if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
        return array + 1
    if ".linear_attn." not in name or name.endswith("linear_attn.norm.weight"):
        return array
    H_k, H_v = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_dim = H_k * config["linear_key_head_dim"]

    def tiled(values: np.ndarray) -> np.ndarray:
        grouped = values.reshape(H_k, H_v // H_k, -1, *values.shape[1:])
        return grouped.swapaxes(0, 1).reshape(values.shape)

    if "in_proj_qkv" in name or "conv1d" in name:
        array = array[:, 0] if "conv1d" in name else array
        return np.concatenate([array[: 2 * key_dim], tiled(array[2 * key_dim :])])
    if "out_proj" in name:
        return tiled(array.T).T
    return tiled(-np.exp(array) if name.endswith("A_log") else array)


def _rope_factors(config: Mapping[str, Any]) -> np.ndarray | None:
    """Divisors of RoPE's frequencies, one per pair of features."""
    rope = config.get("rope_parameters") or {}
    if config["model_type"] == "gemma4_text":
        pairs = _gemma4_metadata(config)["rope.dimension_count"] // 2
        rotated = int(rope["full_attention"]["partial_rotary_factor"] * pairs)
        return np.array([1.0] * rotated + [1e30] * (pairs - rotated), np.float32)
    if rope.get("rope_type") != "llama3":
        return None
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    factors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (2 * pair / head_dim)
        turns = rope["original_max_position_embeddings"] / wavelength
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        smooth = min(max((turns - low) / (high - low), 0), 1)
        factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)
