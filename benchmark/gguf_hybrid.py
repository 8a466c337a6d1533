"""Converts Qwen3.5's weights to llama.cpp's `qwen35` layout.

A Hugging Face checkpoint groups a DeltaNet's value heads by key head. llama.cpp interleaves them:
value head i belongs to key head i mod (number of key heads).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

LAYER_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
}
VECTOR_NAMES = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}
ROPE_SECTIONS = [11, 11, 10, 0]  # used for image positions only, so without effect on text
FLOAT32 = ("ssm_conv1d.weight", "ssm_a", "ssm_dt.bias")


def is_hybrid(config: Mapping[str, Any]) -> bool:
    """Whether a parsed `config.json` describes a Qwen3.5 model."""
    return str(config["model_type"]).startswith("qwen3_5")


def add_parameters(writer: Any, config: Mapping[str, Any]) -> None:
    """Writes the dimensions of the DeltaNet and of the partial RoPE."""
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    writer.add_rope_dimension_sections(ROPE_SECTIONS)
    writer.add_full_attention_interval(config["full_attention_interval"])
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])


def convert_weight(name: str, weight: np.ndarray, config: Mapping[str, Any]) -> np.ndarray:
    """Converts a weight to llama.cpp's layout; `name` is llama.cpp's."""
    width = config["linear_value_head_dim"]
    keys = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
    part = name.split(".", 2)[-1]
    if part == "ssm_a":
        weight = -np.exp(weight)
    if part in ("ssm_a", "ssm_dt.bias", "ssm_alpha.weight", "ssm_beta.weight"):
        return _interleave_heads(weight, 1, config)
    if part == "attn_gate.weight":
        return _interleave_heads(weight, width, config)
    if part == "ssm_out.weight":
        return np.ascontiguousarray(_interleave_heads(weight.T, width, config).T)
    if part in ("attn_qkv.weight", "ssm_conv1d.weight"):
        weight = weight.reshape(len(weight), -1)
        return np.concatenate([weight[:keys], _interleave_heads(weight[keys:], width, config)])
    return weight


def _interleave_heads(rows: np.ndarray, width: int, config: Mapping[str, Any]) -> np.ndarray:
    """Interleaves value heads (`width` rows each) that are grouped by key head."""
    num_key_heads = config["linear_num_key_heads"]
    heads = rows.reshape(num_key_heads, -1, width, *rows.shape[1:])
    return heads.swapaxes(0, 1).reshape(rows.shape)
