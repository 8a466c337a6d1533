"""Random transformers models of every family, the references of logits and tokens."""

from collections.abc import Mapping
from typing import Any

from tests.models.support import import_references

SIZES = {
    "vocab_size": 211,
    "hidden_size": 40,
    "intermediate_size": 72,
    "num_hidden_layers": 3,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
}
# Fields of every family's vision tower.
VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "head_dim": 8}
VISION |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
VISION |= {"out_hidden_size": 40, "num_position_embeddings": 16, "position_embedding_size": 16}
VISION |= {"image_size": 56, "deepstack_visual_indexes": [0]}

SLIDING, FULL = "sliding_attention", "full_attention"
ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4}
LINEAR = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
YARN |= {"original_max_position_embeddings": 64}
SCALED_QUERIES = {**YARN, "original_max_position_embeddings": 24, "llama_4_scaling_beta": 0.6}
SCALED_QUERIES |= {"mscale": 1.0, "mscale_all_dim": 1.0, "max_position_embeddings": 256}
MROPE = {**ROPE, "rope_theta": 5e5, "mrope_section": [4, 2, 2], "mrope_interleaved": True}
TIED = {"tie_word_embeddings": True}
BIASES = {"attention_bias": True}
GEMMA3_ROPE = {
    FULL: {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    SLIDING: {**ROPE, "rope_theta": 2e4},
}
PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 5e4, "factor": 2.0}
GEMMA4_ROPE = {FULL: {**PROPORTIONAL, "partial_rotary_factor": 0.4}, SLIDING: GEMMA3_ROPE[SLIDING]}
GEMMA4 = {"sliding_window": 13, "final_logit_softcapping": 3.0}
GRANITE = {"embedding_multiplier": 12, "residual_multiplier": 0.22}
GRANITE |= {"attention_multiplier": 0.2, "logits_scaling": 3.0}


def heads(H_q: int, H: int, head_dim: int | None = None) -> dict[str, Any]:
    sizes = {"num_attention_heads": H_q, "num_key_value_heads": H}
    return sizes if head_dim is None else {**sizes, "head_dim": head_dim}


def experts(number: int, chosen: int, size: int, **fields: Any) -> dict[str, Any]:
    sizes = {"num_experts": number, "num_experts_per_tok": chosen, "moe_intermediate_size": size}
    return sizes | fields


def layers(*types: str) -> dict[str, Any]:
    return {"num_hidden_layers": len(types), "layer_types": [*types]}


def windows(size: int, **fields: Any) -> dict[str, Any]:
    return {"use_sliding_window": True, "sliding_window": size, **fields}


def rope(scaling: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {**scaling, **fields}}


def per_layer_inputs(size: int) -> dict[str, Any]:
    return {"hidden_size_per_layer_input": size, "vocab_size_per_layer_input": 211}


def hybrid_attention(H_q: int, H: int, D: int, partial: float = 0.25, **fields: Any) -> Any:
    return heads(H_q, H, D) | rope(ROPE, partial_rotary_factor=partial, **fields)


def delta_net(H_k: int, H_v: int, D_k: int, D_v: int, K: int = 4) -> dict[str, Any]:
    return {
        "num_hidden_layers": 4,
        "linear_num_key_heads": H_k,
        "linear_num_value_heads": H_v,
        "linear_key_head_dim": D_k,
        "linear_value_head_dim": D_v,
        "linear_conv_kernel_dim": K,
        "rms_norm_eps": 1e-5,  # a smaller one would magnify rounding
    }


SHARED_EXPERT = experts(5, 2, 24, shared_expert_intermediate_size=20)
LINEAR_ATTENTION = "linear_attention"
VL = {**heads(4, 2, 16), **rope(MROPE)}
CAUSAL, NESTED = "ForCausalLM", "ForConditionalGeneration"


def case(class_name: str, *parts: Mapping[str, Any], **fields: Any) -> tuple[str, dict[str, Any]]:
    """Class in transformers, and its config in addition to `SIZES`."""
    return class_name, {name: part[name] for part in (*parts, fields) for name in part}


# The models have 1 to 8 query heads per KV head, hybrids 1, 2 or 4 value heads per key head.
MODELS = {
    "qwen3-yarn": case("Qwen3", heads(4, 1, 16), rope(YARN), **TIED),
    # DeepSeek-R1-0528-Qwen3-8B: transformers ignores `attn_factor`
    "qwen3-yarn-attn_factor": case("Qwen3", heads(4, 2, 16), rope(YARN, attn_factor=0.8782)),
    "qwen3-biases": case("Qwen3", heads(3, 3, 14), **BIASES),
    "qwen2": case("Qwen2", heads(4, 2)),
    "qwen2-tied-yarn": case(
        "Qwen2", heads(10, 2), rope(YARN, beta_fast=8, attention_factor=1.5), **TIED
    ),
    "llama-2": case("Llama", num_attention_heads=4),
    "llama-3.2": case(
        "Llama", heads(10, 2, 18), rope(LLAMA3, original_max_position_embeddings=64), **TIED
    ),
    "llama-biases-linear": case("Llama", heads(8, 1, 12), rope(LINEAR), **BIASES, mlp_bias=True),
    "qwen3_moe": case("Qwen3Moe", heads(4, 2, 12), experts(5, 2, 24, norm_topk_prob=True)),
    "qwen3_moe-and-mlp": case(
        "Qwen3Moe", heads(4, 4, 16), experts(16, 4, 20, mlp_only_layers=[1]), **TIED
    ),
    "qwen3_moe-top-1": case("Qwen3Moe", heads(2, 1, 16), experts(4, 1, 24, decoder_sparse_step=2)),
    "mistral3": case(
        f"Mistral3{NESTED}", heads(8, 1, 34), model_type="mistral", sliding_window=None
    ),
    "mistral-window": case("Mistral", heads(10, 5, 8), sliding_window=19),
    "ministral3": case(
        f"Mistral3{NESTED}", heads(6, 2, 14), rope(SCALED_QUERIES), **TIED, model_type="ministral3"
    ),
    "ministral3-window": case(
        "Ministral3", heads(5, 5, 10), rope(SCALED_QUERIES, mscale_all_dim=0.0), sliding_window=19
    ),
    "qwen2-windows-in-last-layers": case("Qwen2", heads(10, 5), windows(16, max_window_layers=1)),
    "qwen3-windows-by-layer": case(
        "Qwen3", heads(4, 2, 16), windows(7), layers(SLIDING, FULL, SLIDING)
    ),
    "gpt_oss": case(
        "GptOss",
        heads(6, 2, 14),
        rope(YARN, truncate=False),
        num_hidden_layers=4,
        num_local_experts=5,
        num_experts_per_tok=2,
        sliding_window=19,
    ),
    "qwen3_moe-window": case("Qwen3Moe", heads(4, 2, 12), experts(5, 2, 24), windows(33)),
    "gemma3": case(
        "Gemma3",
        heads(4, 2, 18),
        layers(SLIDING, FULL, SLIDING),
        sliding_window=13,
        query_pre_attn_scalar=12,
    ),
    # one KV head, a window of most of the context, and a pattern that leaves all layers with it
    "gemma3-linear": case(
        "Gemma3", heads(5, 1, 14), rope(GEMMA3_ROPE), sliding_window=70, sliding_window_pattern=2
    ),
    "smollm3": case("SmolLM3", heads(4, 2, 10), no_rope_layers=[1, 0, 1], pad_token_id=None),
    "phi3": case("Phi3", heads(2, 1), rope(ROPE, partial_rotary_factor=0.6), pad_token_id=None),
    "granite": case("Granite", heads(4, 1, 10), GRANITE, **TIED),
    # Gemma 4 E2B: per-layer inputs, and wider layers that read earlier layers' keys and values
    "gemma4-e2b": case(
        "Gemma4",
        heads(4, 1, 14),
        layers(*[SLIDING, SLIDING, FULL] * 2, FULL),
        GEMMA4,
        per_layer_inputs(6),
        global_head_dim=22,
        num_kv_shared_layers=4,
        use_double_wide_mlp=True,
    ),
    # Gemma 4 E4B, without a window and with the default layer types
    "gemma4-e4b": case(
        "Gemma4",
        heads(6, 2, 10),
        GEMMA4,
        per_layer_inputs(8),
        num_hidden_layers=8,
        sliding_window=256,
        global_head_dim=512,
        num_kv_shared_layers=1,
    ),
    # Gemma 4 31B: full layers with other KV heads, whose keys are also their values
    "gemma4-31b": case(
        "Gemma4",
        heads(6, 3, 18),
        layers(SLIDING, FULL, SLIDING, FULL),
        GEMMA4,
        rope(GEMMA4_ROPE),
        attention_k_eq_v=True,
        global_head_dim=36,
        num_global_key_value_heads=2,
        hidden_size_per_layer_input=0,
    ),
    # Gemma 4 12B: fields that its configs lack
    "gemma4-12b": case(
        "Gemma4Unified",
        heads(4, 2, 16),
        layers(SLIDING, FULL, FULL),
        GEMMA4,
        global_head_dim=34,
        attention_k_eq_v=True,
    ),
    # Gemma 4 26B-A4B: experts beside the MLP
    "gemma4-moe": case(
        "Gemma4",
        heads(4, 2, 16),
        layers(SLIDING, SLIDING, FULL),
        GEMMA4,
        attention_k_eq_v=True,
        global_head_dim=24,
        num_global_key_value_heads=1,
        hidden_size_per_layer_input=0,
        enable_moe_block=True,
        num_experts=7,
        top_k_experts=3,
        moe_intermediate_size=20,
    ),
    "qwen3_vl": case(f"Qwen3VL{NESTED}", VL),
    "qwen3_vl_moe": case(f"Qwen3VLMoe{NESTED}", VL, experts(5, 2, 24)),
    "gemma3-multimodal": case(
        f"Gemma3{NESTED}", heads(4, 2, 16), sliding_window=13, pad_token_id=None, **TIED
    ),
    "qwen3_5_text": case("Qwen3_5", hybrid_attention(4, 2, 16), delta_net(2, 4, 12, 10)),
    "qwen3_5-tied": case("Qwen3_5", hybrid_attention(6, 3, 24), delta_net(3, 3, 10, 14), **TIED),
    "qwen3_5-one-key-head": case(
        "Qwen3_5", hybrid_attention(2, 1, 20, 0.5), delta_net(1, 4, 16, 8)
    ),
    "qwen3_5-wide-heads": case(
        "Qwen3_5",
        hybrid_attention(2, 2, 40),
        delta_net(2, 2, 128, 64),
        layers(LINEAR_ATTENTION, FULL),
    ),
    "qwen3_5-layer-types": case(
        "Qwen3_5",
        hybrid_attention(4, 1, 16, 1.0),
        delta_net(2, 8, 14, 10, K=3),
        layers(FULL, LINEAR_ATTENTION, LINEAR_ATTENTION, FULL, LINEAR_ATTENTION),
    ),
    "qwen3_5-biases": case(
        "Qwen3_5", hybrid_attention(5, 5, 8, 0.75), delta_net(5, 5, 9, 11, K=2), **BIASES, **TIED
    ),
    "qwen3_5-yarn": case("Qwen3_5", hybrid_attention(4, 2, 32, **YARN), delta_net(2, 4, 12, 10)),
    "qwen3_5": case(
        f"Qwen3_5{NESTED}", hybrid_attention(4, 2, 16), delta_net(2, 4, 20, 18), **TIED
    ),
    "qwen3_5_moe_text": case(
        "Qwen3_5Moe", hybrid_attention(4, 2, 12, 0.5), delta_net(2, 4, 12, 10), SHARED_EXPERT
    ),
    "qwen3_5_moe": case(
        f"Qwen3_5Moe{NESTED}",
        hybrid_attention(4, 4, 16),
        delta_net(3, 3, 8, 14),
        SHARED_EXPERT,
        num_experts_per_tok=5,
    ),
    "qwen3_next": case(
        "Qwen3Next", hybrid_attention(4, 2, 16), delta_net(2, 4, 12, 10), SHARED_EXPERT
    ),
    "qwen3_next-mlp": case(
        "Qwen3Next",
        hybrid_attention(2, 1, 24, 0.5),
        delta_net(1, 4, 10, 12, K=5),
        SHARED_EXPERT,
        **TIED,
        num_experts_per_tok=1,
        mlp_only_layers=[1],
        norm_topk_prob=False,
    ),
}


def random_model(class_name: str, fields: Mapping[str, Any]) -> Any:
    """Random float32 model with activations of about unit variance and varied norms.

    Args:
        class_name: name in transformers, without "ForCausalLM".
        fields: config; of a multimodal class, its text config.
    """
    torch, transformers = import_references()
    torch.manual_seed(0)
    is_nested = class_name.endswith(NESTED)
    model_class = getattr(transformers, class_name if is_nested else class_name + CAUSAL)
    if class_name.startswith("Qwen3_5Moe"):
        fields = {name: fields[name] for name in fields if name != "intermediate_size"}
    if is_nested:
        tied = {"tie_word_embeddings": fields.get("tie_word_embeddings", False)}
        no_audio = {"audio_config": None} if class_name.startswith("Gemma4") else {}
        config = model_class.config_class(
            text_config=dict(fields), vision_config=VISION, **tied, **no_audio
        )
    else:
        config = model_class.config_class(**fields)
    model = model_class(config)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.copy_(_random_parameter(config.model_type, path, parameter))
        for path, buffer in model.named_buffers():
            if path.endswith("layer_scalar"):
                buffer.uniform_(0.4, 1.3)
    return model.eval()


def _random_parameter(model_type: str, path: str, like: Any) -> Any:
    """As in real models, a delta net's decays are 0.1 to 1.

    With decays near 0, its outputs are tiny, and their norm magnifies rounding errors.
    """
    import torch

    noise = torch.randn_like(like)
    if "norm" in path:
        # Hybrids multiply by 1 + weight, except after the delta net.
        is_offset = model_type.startswith(("qwen3_5", "qwen3_next"))
        is_offset &= not path.endswith("linear_attn.norm.weight")
        weight = 0.2 * noise if is_offset else 1 + 0.2 * noise
        # Gemma 4 does not scale attention scores, so the norms of queries and keys are smaller.
        if model_type.startswith("gemma4") and path.endswith(("q_norm.weight", "k_norm.weight")):
            weight *= like.shape[0] ** -0.25
        return weight
    if path.endswith("A_log"):
        return torch.empty_like(like).uniform_(1, 16).log()
    if path.endswith("dt_bias"):
        return torch.empty_like(like).uniform_(-7, -2)
    return 0.3 * noise if like.ndim == 1 else noise * like.shape[-1] ** -0.5
