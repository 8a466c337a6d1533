"""Config from GGUF metadata, and tensor names of MLX models."""

import re
from typing import Any

import numpy as np

from ..families.tensor_layout import split_names
from .blocks import PLAIN_DTYPES, repacked_format
from .reader import GGUFFile

# `general.architecture` -> `model_type`. GGUF files of Mistral models have architecture "llama".
ARCHITECTURES = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "qwen35": "qwen3_5_text",
    "qwen35moe": "qwen3_5_moe_text",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "gpt-oss": "gpt_oss",
}

# Config field -> metadata field.
FIELDS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa",
    "sliding_window": "attention.sliding_window",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "num_kv_shared_layers": "attention.shared_kv_layers",
    "final_logit_softcapping": "final_logit_softcapping",
}
ROPE_FIELDS = {
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
}
# Parameters of Llama 3.1 to 3.3, the only models with a tensor of RoPE factors.
LLAMA3_ROPE = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3_CONTEXT = 8192
ROPE_FACTORS = "rope_freqs.weight"  # divisors of the frequencies
NO_ROTATION = 1e30  # divisor for features that proportional RoPE does not rotate
OTHER_MODALITIES = ("v.", "a.", "mm.")  # Ollama stores vision and audio encoders in the same file

# Layer names in GGUF -> in MLX models.
LAYERS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "attn_output": "self_attn.o_proj",
    **{f"attn_{name}": f"self_attn.{name}_proj" for name in "qkv"},
    **{f"attn_{name}_norm": f"self_attn.{name}_norm" for name in "qk"},
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    **{f"ffn_{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    **{f"ffn_{name}_exps": f"mlp.switch_mlp.{name}_proj" for name in ("gate", "up", "down")},
    **{f"ffn_{name}_shexp": f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down")},
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
VECTORS = {
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "attn_sinks.weight": "self_attn.sinks",
    "layer_output_scale.weight": "layer_scalar",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
}
GEMMA_LAYERS = {
    **LAYERS,
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate_inp": "router.proj",
    "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
    **{f"post_ffw_norm_{i}": f"post_feedforward_layernorm_{i}" for i in (1, 2)},
    **{
        f"ffn_{name}_exps": f"experts.switch_glu.{name}_proj"
        for name in ("gate", "up", "gate_up", "down")
    },
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
GEMMA3_27B_LAYERS = 62  # scales scores by the hidden size per head; other sizes by the head size


def gguf_config(file: GGUFFile) -> dict[str, Any]:
    """Config with the fields of a `config.json`, and the layers' quantization after repacking.

    Raises:
        ValueError: the architecture or its RoPE scaling is not supported.
    """
    architecture = file.metadata.get("general.architecture")
    if architecture not in ARCHITECTURES or (architecture == "llama" and file.get("expert_count")):
        name = f"{architecture} with experts" if architecture in ARCHITECTURES else architecture
        raise ValueError(
            f"its architecture, {str(name)[:60]}, is not supported in GGUF files; supported ones "
            f"are {', '.join(ARCHITECTURES)}"
        )
    tensors = file.tensors
    embedding = tensors.get("token_embd.weight")
    config = {name: _decimal(file.get(key)) for name, key in FIELDS.items() if file.get(key)}
    config |= {
        "model_type": ARCHITECTURES[architecture],
        "num_hidden_layers": num_trunk_layers(file),
        "vocab_size": 0 if embedding is None else embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_scaling": None if architecture == "gemma4" else _rope_scaling(file),
    }
    for name, value in config.items():  # llama.cpp allows a value per layer
        if isinstance(value, list) and len(set(value)) == 1:
            config[name] = value[0]
    if architecture == "llama":
        if "sliding_window" in config:
            config["model_type"] = "mistral"
        config["mlp_bias"] = "blk.0.ffn_down.bias" in tensors
    if architecture in ("llama", "qwen3"):
        config["attention_bias"] = "blk.0.attn_output.bias" in tensors
    if architecture == "qwen3moe":
        config["norm_topk_prob"] = True  # llama.cpp always normalizes
    if architecture.startswith("qwen35"):
        config |= _hybrid_fields(file, config)
    if architecture == "gemma3":
        is_27b = config["num_hidden_layers"] == GEMMA3_27B_LAYERS
        heads = config.get("num_attention_heads", 1)
        config["query_pre_attn_scalar"] = (
            config["hidden_size"] // heads if is_27b else config.get("head_dim")
        )
    if architecture == "gpt-oss":
        config["intermediate_size"] = config.pop(
            "moe_intermediate_size", config.get("intermediate_size")
        )
        if config["rope_scaling"]:
            config["rope_scaling"]["truncate"] = False  # llama.cpp rounds the ramp's bounds
    if architecture == "gemma4":
        config |= _gemma4_fields(file, config)
    formats = {
        name.removesuffix(".weight"): repacked_format(each)
        for source, each in tensors.items()
        for name in tensor_names(source, file)
        if len(each.shape) > 1
    }
    config["dtype"] = "float16"
    if any(formats.values()):
        config["quantization"] = {
            "group_size": 32,
            "bits": 4,
            **{name: vars(each) if each else False for name, each in formats.items()},
        }
    elif embedding is not None:
        config["dtype"] = str(PLAIN_DTYPES[embedding.type.name]).removeprefix("mlx.core.")
    return config


def num_trunk_layers(file: GGUFFile) -> int:
    """Number of layers without those of multi-token prediction."""
    return int(file.get("block_count", 0)) - int(file.get("nextn_predict_layers", 0))


def tensor_names(name: str, file: GGUFFile) -> tuple[str, ...]:
    """Names in MLX's model: several for a fused tensor, none for RoPE factors and unused layers."""
    in_block = re.fullmatch(r"blk\.(\d+)\.(.+)", name)
    prefix, rest = "", name
    if in_block is not None:
        prefix, rest = f"model.layers.{in_block[1]}.", in_block[2]
    is_mtp = in_block is not None and int(in_block[1]) >= num_trunk_layers(file)
    if name == ROPE_FACTORS or is_mtp or name.startswith(OTHER_MODALITIES):
        return ()
    layer, _, kind = rest.partition(".")
    if rest in VECTORS:
        return (prefix + VECTORS[rest],)
    layers = GEMMA_LAYERS if "blk.0.post_ffw_norm.weight" in file.tensors else LAYERS
    if layer not in layers:
        return (name,)
    return tuple(f"{path}.{kind}" for path in split_names(prefix + layers[layer]))


def _decimal(value: Any) -> Any:
    """Shortest decimal of a float32: 1e-05 instead of 9.999999747378752e-06."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _hybrid_fields(file: GGUFFile, config: dict[str, Any]) -> dict[str, Any]:
    kinds = {True: "linear_attention", False: "full_attention"}
    layers = range(config["num_hidden_layers"])
    factor = file.get("rope.dimension_count", 0) / config.get("head_dim", 1)
    rope = {"rope_type": "default", "rope_theta": config.get("rope_theta")}
    return {
        "layer_types": [kinds[f"blk.{i}.ssm_a" in file.tensors] for i in layers],
        "linear_value_head_dim": file.get("ssm.inner_size", 0) // file.get("ssm.time_step_rank", 1),
        "rope_parameters": {**rope, "partial_rotary_factor": factor},
    }


def _gemma4_fields(file: GGUFFile, config: dict[str, Any]) -> dict[str, Any]:
    is_local = file.get("attention.sliding_window_pattern", [])
    full = [index for index, each in enumerate(is_local) if not each]
    heads, sizes = (config.get(x) for x in ("num_key_value_heads", "intermediate_size"))
    heads_of = heads if isinstance(heads, list) else [heads] * len(is_local)
    table = file.tensors.get("per_layer_token_embd.weight")
    local_rope = {"rope_theta": config.pop("rope_local_base_freq", None)}
    full_rope = {
        "rope_type": "proportional",
        "rope_theta": config.get("rope_theta"),
        "partial_rotary_factor": float((_rope_factors(file) < NO_ROTATION).mean()),
    }
    return {
        "layer_types": ["sliding_attention" if each else "full_attention" for each in is_local],
        "num_key_value_heads": heads_of[is_local.index(True)],
        "head_dim": file.get("attention.key_length_swa"),
        "per_layer_config": {
            str(index): {"num_key_value_heads": heads_of[index], "head_dim": config.get("head_dim")}
            for index in full
        },
        "attention_k_eq_v": f"blk.{full[0]}.attn_v.weight" not in file.tensors,
        "intermediate_size": min(sizes) if isinstance(sizes, list) else sizes,
        "use_double_wide_mlp": isinstance(sizes, list),
        "hidden_size_per_layer_input": file.get("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": None if table is None else table.shape[0],
        "enable_moe_block": "num_experts" in config,
        "top_k_experts": config.pop("num_experts_per_tok", None),
        "rope_parameters": {"full_attention": full_rope, "sliding_attention": local_rope},
    }


def _rope_factors(file: GGUFFile) -> np.ndarray:
    tensor = file.tensors[ROPE_FACTORS]
    return np.fromfile(tensor.file, np.float32, tensor.shape[0], offset=tensor.offset)


def _rope_scaling(file: GGUFFile) -> dict[str, Any] | None:
    if ROPE_FACTORS in file.tensors:
        return _llama3_scaling(file)
    kind = file.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    fields = {name: _decimal(file.get(key)) for name, key in ROPE_FIELDS.items() if file.get(key)}
    return {"rope_type": kind, **fields}


def _llama3_scaling(file: GGUFFile) -> dict[str, Any]:
    factors = _rope_factors(file)
    exponents = np.arange(len(factors)) / len(factors)
    rotations = LLAMA3_CONTEXT / (2 * np.pi) * file.get("rope.freq_base", 1e4) ** -exponents
    low, high = LLAMA3_ROPE.values()
    kept = ((rotations - low) / (high - low)).clip(0, 1)
    factor = float(factors.max())
    if not np.allclose(factors, 1 / ((1 - kept) / factor + kept), rtol=1e-4):
        raise ValueError(
            f"the values of {ROPE_FACTORS} are not those of Llama 3.1, the only ones supported"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        **LLAMA3_ROPE,
        "original_max_position_embeddings": LLAMA3_CONTEXT,
    }
