"""Registry of model families: `config.json` to `DecoderConfig`.

All quirks of Hugging Face configs are normalized here. Unknown fields are rejected, because they
may change the computation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .config import DecoderConfig, MoEConfig
from .config_fields import Fields, boolean, positive_float, positive_int, reject_unknown_fields
from .rope import RopeScaling

# A family's sliding windows: none; in every layer if the config has a size; or in some layers if
# `use_sliding_window` is on.
SlidingWindow = Literal["none", "always", "switched"]


@dataclass(frozen=True)
class Family:
    """Properties of a family missing from its configs.

    Attributes:
        qk_norm: see `DecoderConfig`.
        bias: attention biases: "qkv" for q, k and v; "switched" for all four projections if
            `attention_bias` is on; "none".
        mlp_bias: whether `mlp_bias` is supported.
        window: see `SlidingWindow`.
        head_dim: default of `head_dim`; None for hidden_size / num_attention_heads.
        has_experts: whether layers may have experts.
    """

    qk_norm: bool = False
    bias: Literal["none", "qkv", "switched"] = "none"
    mlp_bias: bool = False
    window: SlidingWindow = "none"
    head_dim: int | None = None
    has_experts: bool = False


FAMILIES: Mapping[str, Family] = {
    "qwen3": Family(qk_norm=True, bias="switched", window="switched", head_dim=128),
    "qwen3_moe": Family(qk_norm=True, bias="switched", window="switched", has_experts=True),
    "qwen2": Family(bias="qkv", window="switched"),
    "llama": Family(bias="switched", mlp_bias=True),
    "mistral": Family(window="always"),
}

# transformers' default for Mistral, omitted by early configs; null disables it.
MISTRAL_WINDOW = 4096
LAYER_TYPES = {"full_attention", "sliding_attention"}
ACTIVATIONS = ("silu", "swish")  # two names of one function

SUPPORTED_FIELDS = {
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "tie_word_embeddings",
    "attention_bias",
    "mlp_bias",
    "hidden_act",
    "use_sliding_window",
    "sliding_window",
    "max_window_layers",
    "layer_types",
}

SUPPORTED_MOE_FIELDS = SUPPORTED_FIELDS | {
    "num_experts",
    "num_local_experts",  # the same, in newer configs
    "num_experts_per_tok",
    "moe_intermediate_size",
    "norm_topk_prob",
    "decoder_sparse_step",
    "mlp_only_layers",
    "router_aux_loss_coef",  # training only, as the next one
    "output_router_logits",
}

# Fields read by other modules, affecting training only, or redundant.
IGNORED_FIELDS = {
    "architectures",
    "attention_dropout",
    "attn_implementation",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "initializer_range",
    "keys_to_ignore_at_inference",
    "name_or_path",
    "pad_token_id",
    "pretraining_tp",  # number of partial products
    "quantization",
    "quantization_config",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "unk_token_id",
    "use_cache",
}
IGNORED_PREFIXES = ("_", "unsloth_")


def read_config(config: Fields) -> DecoderConfig:
    """Parses a `config.json`, or the args of `mlx_lm`'s model.

    Raises:
        ValueError: names the unknown family, or the unknown, missing or invalid field.
    """
    family = family_of(config)
    fields = {
        name: value
        for name, value in config.items()
        if name not in IGNORED_FIELDS and not name.startswith(IGNORED_PREFIXES)
    }
    reject_unknown_fields(fields, SUPPORTED_MOE_FIELDS if family.has_experts else SUPPORTED_FIELDS)
    if fields.get("hidden_act", "silu") not in ACTIVATIONS:
        raise ValueError(f"config.json has hidden_act {fields['hidden_act']!r}, expected 'silu'")
    E, H_q = positive_int(fields, "hidden_size"), positive_int(fields, "num_attention_heads")
    attention_bias = boolean(fields, "attention_bias")
    mlp_bias = boolean(fields, "mlp_bias")
    if (attention_bias and family.bias != "switched") or (mlp_bias and not family.mlp_bias):
        name = "attention_bias" if attention_bias and family.bias != "switched" else "mlp_bias"
        raise ValueError(f"config.json has {name} true, which {config['model_type']} does not have")
    rope = _rope_fields(fields)
    context = positive_int(fields, "max_position_embeddings")
    scaling = RopeScaling.from_fields(rope.scaling, context)
    if scaling is not None:
        context = scaling.scaled_context(context)
    return DecoderConfig(
        model_type=config["model_type"],
        hidden_size=E,
        num_hidden_layers=positive_int(fields, "num_hidden_layers"),
        intermediate_size=positive_int(fields, "intermediate_size"),
        num_attention_heads=H_q,
        num_key_value_heads=positive_int(fields, "num_key_value_heads", H_q),
        head_dim=_head_dim(fields, family, E, H_q),
        vocab_size=positive_int(fields, "vocab_size"),
        max_position_embeddings=min(context, _window(fields, family) or context),
        rms_norm_eps=positive_float(fields, "rms_norm_eps"),
        rope_theta=rope.theta,
        rope_scaling=scaling,
        tie_word_embeddings=boolean(fields, "tie_word_embeddings"),
        qkv_bias=family.bias == "qkv" or attention_bias,
        o_proj_bias=attention_bias,
        mlp_bias=mlp_bias,
        qk_norm=family.qk_norm,
        experts=_experts(fields) if family.has_experts else None,
    )


def config_of(args: Any) -> DecoderConfig:
    """A model's config, from the args of `load_weights` or `mlx_lm`."""
    return args if isinstance(args, DecoderConfig) else read_config(vars(args))


def family_of(config: Fields) -> Family:
    """Family of a config.

    Raises:
        ValueError: the family is unknown.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(
            f"a model of type '{str(model_type)[:60]}'; tiny-llm serves the types "
            f"{', '.join(FAMILIES)}"
        )
    return FAMILIES[model_type]


@dataclass(frozen=True)
class _Rope:
    theta: float
    scaling: Mapping[str, Any] | None


def _rope_fields(fields: Fields) -> _Rope:
    """RoPE base and scaling; newer configs have both in one object."""
    both = fields.get("rope_parameters") or {}
    if not isinstance(both, Mapping):
        raise ValueError(f"config.json has rope_parameters {both!r}, expected an object")
    base = both if fields.get("rope_theta") is None and "rope_theta" in both else fields
    scaling = fields.get("rope_scaling")
    return _Rope(
        positive_float(base, "rope_theta", 10000.0), both or None if scaling is None else scaling
    )


def _window(fields: Fields, family: Family) -> int | None:
    """Size of the smallest sliding window; None without one.

    The kernels do not support windows. Up to the window size, attention is full, so the window
    limits the context instead.
    """
    types = fields.get("layer_types")
    if types is not None and not LAYER_TYPES.issuperset(types):
        known = ", ".join(sorted(LAYER_TYPES))
        raise ValueError(f"config.json has layer_types {types!r}; tiny-llm knows {known}")
    if family.window == "always":
        fields = {"sliding_window": MISTRAL_WINDOW, **fields}
    else:
        if family.window == "switched" and not boolean(fields, "use_sliding_window"):
            return None
        if types is not None and "sliding_attention" not in types:
            return None
        first = positive_int(fields, "max_window_layers", 1)  # the layers before it have no window
        if types is None and first >= fields["num_hidden_layers"] > 1:
            return None
    return None if fields.get("sliding_window") is None else positive_int(fields, "sliding_window")


def _experts(fields: Fields) -> MoEConfig | None:
    """Parses the mixture of experts."""
    step, num_layers = (
        positive_int(fields, "decoder_sparse_step", 1),
        positive_int(fields, "num_hidden_layers"),
    )
    plain = fields.get("mlp_only_layers") or []
    if not isinstance(plain, list) or not all(isinstance(index, int) for index in plain):
        raise ValueError(f"config.json has mlp_only_layers {plain!r}, expected a list of layers")
    layers = {i for i in range(num_layers) if (i + 1) % step == 0 and i not in plain}
    name = "num_local_experts" if "num_local_experts" in fields else "num_experts"
    num_experts, top_k = positive_int(fields, name), positive_int(fields, "num_experts_per_tok")
    if top_k > num_experts:
        raise ValueError(f"config.json has num_experts_per_tok {top_k} > num_experts {num_experts}")
    return MoEConfig(
        num_experts,
        top_k,
        positive_int(fields, "moe_intermediate_size"),
        boolean(fields, "norm_topk_prob"),
        frozenset(layers),
    )


def _head_dim(fields: Fields, family: Family, hidden_size: int, num_heads: int) -> int:
    if fields.get("head_dim") is not None or family.head_dim is not None:
        return positive_int(fields, "head_dim", family.head_dim)
    if hidden_size % num_heads != 0:
        raise ValueError(
            f"config.json has no head_dim, and hidden_size {hidden_size} is no multiple of "
            f"num_attention_heads {num_heads}"
        )
    return hidden_size // num_heads
