"""Model family registry: conversion of `config.json` to `DecoderConfig`.

All quirks of Hugging Face configs are normalized here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .config import (
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    Activation,
    DecoderConfig,
    DeltaNetConfig,
    LocalRope,
    MoEConfig,
    SlidingWindow,
    check_mtp_fields,
)
from .config_fields import (
    Fields,
    ReadFields,
    boolean,
    invalid_field,
    non_negative_int,
    non_negative_ints,
    positive_float,
    positive_int,
    reject_unsupported,
    text_fields,
)
from .gemma4 import ROPE_PARAMETERS, with_gemma4_fields
from .rope import PROPORTIONAL, QueryScaling, RopeFields, RopeScaling

# Which layers have a sliding window, if the config has a window size. "always": all layers.
# "switched": all layers, if `use_sliding_window` is on. "by_layer": the layers selected by
# `layer_types` or `max_window_layers`, if `use_sliding_window` is on. "pattern": the layers that
# `layer_types` selects, or all but every `sliding_window_pattern`-th.
WindowKind = Literal["none", "always", "switched", "by_layer", "pattern"]

SWIGLU_LIMIT = 7.0  # of gpt-oss; the kernel hard-codes it


@dataclass(frozen=True)
class Family:
    """Properties of a family that its configs omit."""

    qk_norm: bool = False
    # Which attention projections have a bias. "qkv": q, k and v. "switched": all four, if
    # `attention_bias` is on.
    bias: Literal["none", "qkv", "switched"] = "none"
    mlp_bias: bool = False
    window: WindowKind = "none"
    head_dim: int | None = None  # default of `head_dim`; None for hidden_size / num_attention_heads
    has_experts: bool = False
    norm_topk_prob: bool = False  # default of `norm_topk_prob`
    # Whether some layers are Gated DeltaNets and the others gated attention.
    is_hybrid: bool = False
    zero_centered_norms: bool = False
    post_norms: bool = False
    activation: Activation = "silu"
    expert_bias: bool = False  # and router bias; then `intermediate_size` is an expert's
    attention_sinks: bool = False
    scales_embeddings: bool = False  # by √hidden_size
    exceeds_float16: bool = False  # see `DecoderConfig`
    residual_divisor: float = 1.0  # see `DecoderConfig`
    # Default RoPE base of layers with a window; None if all layers have the same RoPE.
    local_rope_theta: float | None = None
    # Fields in `UNSUPPORTED` that the family implements.
    supported_fields: tuple[str, ...] = ()
    # Values of config fields that checkpoints may omit.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # Whether the last layer attends to all keys, regardless of the config.
    last_is_full: bool = False
    # Adds family-specific config fields to a `DecoderConfig`.
    extend: Callable[[Fields, DecoderConfig], DecoderConfig] = lambda _, config: config


HYBRID = Family(
    qk_norm=True, bias="switched", head_dim=256, is_hybrid=True, zero_centered_norms=True
)
HYBRID_MOE = replace(HYBRID, has_experts=True, norm_topk_prob=True)
# Language model of Qwen3-VL. A text token has the same position in all sections of its RoPE, so
# the layers are Qwen3's.
QWEN3_VL = Family(qk_norm=True, bias="switched", head_dim=128)
QWEN3_VL_MOE = Family(qk_norm=True, bias="switched", has_experts=True, norm_topk_prob=True)
# Only the language model of multimodal Gemma 3.
GEMMA3 = Family(
    qk_norm=True,
    bias="switched",
    window="pattern",
    zero_centered_norms=True,
    post_norms=True,
    activation="gelu_tanh",
    scales_embeddings=True,
    residual_divisor=64.0,  # the residual stream reaches 10⁵, beyond float16's range
    local_rope_theta=10_000.0,
    supported_fields=("query_pre_attn_scalar", "rope_local_base_freq", "sliding_window_pattern"),
    defaults={
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    },
)
SMOLLM3 = Family(
    bias="switched",
    mlp_bias=True,
    window="by_layer",
    supported_fields=("no_rope_layers", "no_rope_layer_interval"),
    defaults={"rope_theta": 2e6, "tie_word_embeddings": True},
)
GRANITE = Family(
    bias="switched",
    mlp_bias=True,
    supported_fields=(
        *("attention_multiplier", "embedding_multiplier", "residual_multiplier"),
        "logits_scaling",
    ),
)
# The language models of multimodal Mistral 3 (`mistral3`), which run alone.
MISTRAL = Family(window="always")
MINISTRAL3 = replace(
    MISTRAL,
    supported_fields=("llama_4_scaling_beta",),
    defaults={"head_dim": 128, "num_key_value_heads": 8, "sliding_window": None},
)
PHI3 = Family(
    window="always", supported_fields=("partial_rotary_factor",), defaults={"sliding_window": None}
)

GPT_OSS = Family(
    bias="switched",
    window="pattern",
    has_experts=True,
    norm_topk_prob=True,  # equivalent to gpt-oss's softmax over the selected logits
    activation="swigluoai",
    expert_bias=True,
    attention_sinks=True,
    exceeds_float16=True,
    supported_fields=("sliding_window_pattern", "swiglu_limit"),
    defaults={
        "head_dim": 64,
        "num_key_value_heads": 8,
        "attention_bias": True,
        "sliding_window": 128,
        "sliding_window_pattern": 2,
        "swiglu_limit": SWIGLU_LIMIT,
    },
)

# Only the language model of multimodal Gemma 4.
GEMMA4 = replace(
    GEMMA3,
    zero_centered_norms=False,
    residual_divisor=1.0,
    exceeds_float16=True,
    supported_fields=(
        *("query_pre_attn_scalar", "sliding_window_pattern", "final_logit_softcapping"),
        *("num_kv_shared_layers", "hidden_size_per_layer_input", "use_bidirectional_attention"),
    ),
    defaults={
        **{name: GEMMA3.defaults[name] for name in ("rms_norm_eps", "max_position_embeddings")},
        "vocab_size": 262_144,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "query_pre_attn_scalar": 1,
        "sliding_window": 512,
        "hidden_size_per_layer_input": 256,
        "rope_parameters": ROPE_PARAMETERS,
        "tie_word_embeddings": True,
    },
    last_is_full=True,
    extend=with_gemma4_fields,
)
GEMMA4_UNIFIED = replace(
    GEMMA4,
    defaults={
        **GEMMA4.defaults,
        "hidden_size_per_layer_input": 0,
        "sliding_window": 1024,
        "max_position_embeddings": 262_144,
    },
)

FAMILIES: Mapping[str, Family] = {
    "qwen3": Family(qk_norm=True, bias="switched", window="by_layer", head_dim=128),
    "qwen3_moe": Family(qk_norm=True, bias="switched", window="switched", has_experts=True),
    "qwen3_vl": QWEN3_VL,
    "qwen3_vl_text": QWEN3_VL,
    "qwen3_vl_moe": QWEN3_VL_MOE,
    "qwen3_vl_moe_text": QWEN3_VL_MOE,
    "qwen2": Family(bias="qkv", window="by_layer"),
    "llama": Family(bias="switched", mlp_bias=True),
    "mistral": MISTRAL,
    "mistral3": MISTRAL,
    "ministral3": MINISTRAL3,
    "qwen3_5": HYBRID,
    "qwen3_5_text": HYBRID,
    "qwen3_5_moe": HYBRID_MOE,
    "qwen3_5_moe_text": HYBRID_MOE,
    "qwen3_next": HYBRID_MOE,
    "gemma3": GEMMA3,
    "gemma3_text": GEMMA3,
    "smollm3": SMOLLM3,
    "granite": GRANITE,
    "phi3": PHI3,
    "gpt_oss": GPT_OSS,
    "gemma4": GEMMA4,
    "gemma4_text": GEMMA4,
    "gemma4_unified": GEMMA4_UNIFIED,
    "gemma4_unified_text": GEMMA4_UNIFIED,
}

# transformers' defaults, for early configs without these fields. A null value disables the window.
DEFAULT_WINDOW = 4096
DEFAULT_MAX_WINDOW_LAYERS = 28
DEFAULT_WINDOW_PATTERN = 6
DEFAULT_NO_ROPE_INTERVAL = 4

MAX_LAYERS = 1000

LAYER_TYPES = ("full_attention", "sliding_attention")
# Spellings of each activation function in configs.
ACTIVATIONS: Mapping[Activation, tuple[str, ...]] = {
    "silu": ("silu", "swish"),
    "gelu_tanh": ("gelu_pytorch_tanh",),
    "swigluoai": ("silu",),
}

HYBRID_PARTIAL_ROTARY_FACTOR = 0.25  # default of `partial_rotary_factor`


def read_config(config: Fields, mtp: bool = False) -> DecoderConfig:
    """Parses a `config.json`, or an `mlx_lm` model's args.

    Raises:
        ValueError: the family is unknown or has no MTP layer, or a field is unsupported, missing or
            invalid; the message names it.
    """
    fields = ReadFields(text_fields(config))
    family = family_of(fields)
    fields.update({k: v for k, v in family.defaults.items() if fields.get(k) is None})
    for name in ("hidden_act", "hidden_activation"):
        known = ACTIVATIONS[family.activation]
        if fields.get(name, known[0]) not in known:
            raise invalid_field(name, fields[name], f"'{known[0]}'")
    E, H_q = positive_int(fields, "hidden_size"), positive_int(fields, "num_attention_heads")
    D = _head_dim(fields, family, E, H_q)
    _reject_unsupported(fields, family, D)
    H = positive_int(fields, "num_key_value_heads", H_q)
    if H_q % H != 0:
        expected = f"a multiple of num_key_value_heads, {H}"
        raise invalid_field("num_attention_heads", H_q, expected)
    attention_bias = boolean(fields, "attention_bias")
    mlp_bias = boolean(fields, "mlp_bias")
    if (attention_bias and family.bias != "switched") or (mlp_bias and not family.mlp_bias):
        name = "attention_bias" if attention_bias and family.bias != "switched" else "mlp_bias"
        raise ValueError(
            f"config.json has {name} true, which {fields['model_type']} does not support"
        )
    output_gate_type = fields.get("output_gate_type") or "silu"
    if output_gate_type not in ACTIVATIONS["silu"]:
        raise invalid_field("output_gate_type", output_gate_type, "'silu'")
    partial = HYBRID_PARTIAL_ROTARY_FACTOR if family.is_hybrid else 1
    rope = RopeFields.from_config(fields, partial, family.local_rope_theta)
    is_proportional = rope.scaling.get("rope_type") == PROPORTIONAL
    is_partial = family.is_hybrid or "partial_rotary_factor" in family.supported_fields
    if rope.partial_rotary_factor != 1 and not (is_partial or is_proportional):
        raise invalid_field("partial_rotary_factor", rope.partial_rotary_factor, "1 in this family")
    context = positive_int(fields, "max_position_embeddings")
    rope_fields = ReadFields(rope.scaling)
    reject_unsupported(rope_fields, family.supported_fields)
    scaling = RopeScaling.from_fields(rope_fields, context, rope.partial_rotary_factor)
    query_scaling = QueryScaling.from_fields(rope_fields, context)
    if scaling is not None and rope.local_theta is None:  # Gemma's context is already scaled
        context = scaling.scaled_context(context)
    if mtp:
        check_mtp_fields(fields, family.is_hybrid)
    num_layers = positive_int(fields, "num_hidden_layers", most=MAX_LAYERS)
    experts = _experts(fields, family, num_layers) if family.has_experts else None
    window = None if family.is_hybrid else _sliding_window(fields, family, num_layers)
    decoder = DecoderConfig(
        model_type=fields["model_type"],
        hidden_size=E,
        num_hidden_layers=num_layers,
        intermediate_size=_intermediate_size(fields, experts),
        num_attention_heads=H_q,
        num_key_value_heads=H,
        head_dim=D,
        vocab_size=positive_int(fields, "vocab_size"),
        max_position_embeddings=context,
        rms_norm_eps=positive_float(fields, "rms_norm_eps"),
        rope_theta=rope.theta,
        rotary_dim=None if is_proportional else rope.rotary_dim(D),
        rope_scaling=scaling,
        query_scaling=query_scaling,
        local_rope=_local_rope(fields, family, rope.local_theta, window, num_layers),
        embedding_scale=E**0.5
        if family.scales_embeddings
        else _multiplier(fields, family, "embedding_multiplier"),
        # Dividing the residual stream is equivalent to multiplying each update.
        residual_divisor=family.residual_divisor
        * _multiplier(fields, family, "residual_multiplier"),
        logits_scaling=_multiplier(fields, family, "logits_scaling"),
        attention_scale=_attention_scale(fields, family),
        activation=family.activation,
        post_norms=family.post_norms,
        exceeds_float16=family.exceeds_float16,
        tie_word_embeddings=boolean(fields, "tie_word_embeddings"),
        qkv_bias=family.bias == "qkv" or attention_bias,
        o_proj_bias=attention_bias,
        mlp_bias=mlp_bias,
        qk_norm=family.qk_norm,
        attention_sinks=family.attention_sinks,
        zero_centered_norms=family.zero_centered_norms,
        attn_output_gate=boolean(fields, "attn_output_gate", family.is_hybrid),
        experts=experts,
        delta_net=DeltaNetConfig.from_fields(fields) if family.is_hybrid else None,
        # A window at least as long as the context has no effect, so it is dropped.
        sliding_window=None if window is None or window.size >= context else window,
        has_mtp=mtp,
    )
    decoder = family.extend(fields, decoder)
    ignored = *fields.ignored(), *(f"rope_scaling.{x}" for x in rope_fields.ignored())
    return replace(decoder, ignored_fields=ignored)


def config_of(args: Any) -> DecoderConfig:
    return args if isinstance(args, DecoderConfig) else read_config(vars(args))


def family_of(config: Fields) -> Family:
    """Looks up a config's family; ValueError if it is unknown."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(
            f"model type '{str(model_type)[:60]}' is not supported; supported types are "
            f"{', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]


def _reject_unsupported(fields: Fields, family: Family, head_dim: int) -> None:
    neutral: dict[str, Any] = {
        "query_pre_attn_scalar": head_dim,
        "attention_multiplier": head_dim**-0.5,
        "rotary_dim": head_dim,
    }
    if not family.is_hybrid:
        neutral["attn_output_gate"] = False
    for name in ("qk_norm", "use_qk_norm", "qk_layernorm", "use_qk_layernorm"):
        neutral[name] = family.qk_norm
    reject_unsupported(fields, family.supported_fields, **neutral)
    if family.activation == "swigluoai" and fields["swiglu_limit"] != SWIGLU_LIMIT:
        raise invalid_field("swiglu_limit", fields["swiglu_limit"], SWIGLU_LIMIT)


def _multiplier(fields: Fields, family: Family, name: str) -> float:
    return positive_float(fields, name, 1.0) if name in family.supported_fields else 1.0


def _attention_scale(fields: Fields, family: Family) -> float | None:
    if "attention_multiplier" in family.supported_fields:
        return _multiplier(fields, family, "attention_multiplier")
    if "query_pre_attn_scalar" in family.supported_fields:
        return positive_float(fields, "query_pre_attn_scalar") ** -0.5
    return None


def _local_rope(
    fields: Fields,
    family: Family,
    local_theta: float | None,
    window: SlidingWindow | None,
    num_layers: int,
) -> LocalRope | None:
    if local_theta is not None:
        return None if window is None else LocalRope(local_theta, window.layers)
    if "no_rope_layers" not in family.supported_fields:
        return None
    interval = positive_int(fields, "no_rope_layer_interval", DEFAULT_NO_ROPE_INTERVAL)
    has_rope = non_negative_ints(fields, "no_rope_layers")  # 1, or 0 for a layer without RoPE
    if has_rope is None:
        has_rope = [(i + 1) % interval for i in range(num_layers)]
    return LocalRope(None, frozenset(i for i, each in enumerate(has_rope) if not each))


def _intermediate_size(fields: Fields, experts: MoEConfig | None) -> int:
    all_experts = experts is not None and len(experts.layers) == fields["num_hidden_layers"]
    default = experts.intermediate_size if experts is not None and all_experts else None
    return positive_int(fields, "intermediate_size", default)


def _sliding_window(fields: Fields, family: Family, num_layers: int) -> SlidingWindow | None:
    """Parses the sliding-window fields, with the same semantics as transformers."""
    types = fields.get("layer_types")
    if types is not None and not (isinstance(types, list) and all(t in LAYER_TYPES for t in types)):
        raise invalid_field("layer_types", types, f"a list of {' or '.join(LAYER_TYPES)}")
    size = fields.get("sliding_window", DEFAULT_WINDOW)
    first = non_negative_int(fields, "max_window_layers", DEFAULT_MAX_WINDOW_LAYERS)
    if family.window != "by_layer":
        first = 0
    if family.window == "none" or (
        family.window in ("switched", "by_layer") and not boolean(fields, "use_sliding_window")
    ):
        size = None
    layers = frozenset(range(first, num_layers))
    if family.window == "pattern":
        pattern = positive_int(fields, "sliding_window_pattern", DEFAULT_WINDOW_PATTERN)
        layers = frozenset(i for i in layers if (i + 1) % pattern)
    if size is None:
        layers = frozenset()
    if types is not None:
        if len(types) != num_layers:
            raise ValueError(
                f"config.json has {len(types)} layer_types, expected {num_layers}, its "
                "num_hidden_layers"
            )
        listed = frozenset(i for i, each in enumerate(types) if each == "sliding_attention")
        if size is not None and family.window in ("by_layer", "pattern"):
            layers = listed
        # For Mistral, transformers ignores `layer_types` and `mlx_lm` sets them all to full
        # attention, so a list without sliding layers is accepted and ignored.
        elif listed != layers and (listed or family.window != "always"):
            raise ValueError(
                f"config.json has {len(listed)} sliding_attention layers in layer_types, but its "
                f"window applies to {len(layers)} of {num_layers} layers"
            )
    if family.last_is_full:
        layers -= {num_layers - 1}
    return SlidingWindow(positive_int(fields, "sliding_window", size), layers) if layers else None


def _experts(fields: Fields, family: Family, num_layers: int) -> MoEConfig:
    step = positive_int(fields, "decoder_sparse_step", 1)
    mlp_only = non_negative_ints(fields, "mlp_only_layers") or []
    layers = {i for i in range(num_layers) if (i + 1) % step == 0} - set(mlp_only)
    name = "num_local_experts" if "num_local_experts" in fields else "num_experts"
    num_experts = positive_int(fields, name, most=MAX_EXPERTS)
    top_k = positive_int(fields, "num_experts_per_tok")
    if top_k > num_experts:
        raise invalid_field("num_experts_per_tok", top_k, f"at most num_experts, {num_experts}")
    shared = positive_int(fields, "shared_expert_intermediate_size") if family.is_hybrid else None
    return MoEConfig(
        num_experts,
        top_k,
        positive_int(
            fields, "intermediate_size" if family.expert_bias else "moe_intermediate_size"
        ),
        boolean(fields, "norm_topk_prob", family.norm_topk_prob),
        frozenset(layers),
        shared,
        family.activation,
        family.expert_bias,
    )


def _head_dim(fields: Fields, family: Family, hidden_size: int, num_heads: int) -> int:
    if fields.get("head_dim") is not None or family.head_dim is not None:
        head_dim = positive_int(fields, "head_dim", family.head_dim)
    elif hidden_size % num_heads != 0:
        raise ValueError(
            f"config.json has no head_dim, and hidden_size {hidden_size} is not a multiple of "
            f"num_attention_heads {num_heads}"
        )
    else:
        head_dim = hidden_size // num_heads
    if head_dim % 2 != 0 or head_dim > MAX_HEAD_DIM:
        raise invalid_field("head_dim", head_dim, f"an even number of at most {MAX_HEAD_DIM}")
    return head_dim
