"""Validated access to fields of `config.json`.

A missing or invalid field raises ValueError, whose message names the field. So does a field that is
known to change the computation in a way that no family here implements (`UNSUPPORTED`). All other
unknown fields are ignored, and reported when the model is loaded.
"""

from collections.abc import Collection, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ...errors import short_repr

Fields = Mapping[str, Any]

MAX_INT32 = 2**31 - 1  # the kernels index arrays with int32
MAX_NUMBER = 1e30  # leaves a margin below float32's maximum of 3e38

MULTIMODAL = (
    *("qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe", "gemma3", "gemma4", "gemma4_unified"),
)
# Families whose config nests the language model's fields in `text_config`, next to vision fields,
# and the language models' families; the first is the default.
NESTED_FAMILIES: Mapping[str, tuple[str, ...]] = {
    **{name: (name, f"{name}_text") for name in MULTIMODAL},
    "mistral3": ("mistral", "ministral3"),
}

# Fields that change the computation: (what they change, neutral values, names). Null is neutral.
# Each element of a list must be neutral. Collected from the models of transformers and mlx_lm.
UNSUPPORTED: tuple[tuple[str, tuple[Any, ...], tuple[str, ...]], ...] = (
    (
        "caps scores, logits or activations",
        (0,),
        (
            *("attn_logit_softcapping", "final_logit_softcapping", "logits_soft_cap", "softcap"),
            *("output_logit_soft_cap", "moe_router_logit_softcapping", "clip_qkv", "swiglu_limit"),
        ),
    ),
    (
        "scales embeddings, residuals, activations or logits",
        (1, False),
        (
            *("embedding_multiplier", "residual_multiplier", "logits_scaling", "logit_scale"),
            *("lm_head_multiplier", "output_multiplier", "key_multiplier", "mlp_multipliers"),
            *("attention_in_multiplier", "attention_out_multiplier", "attention_value_scale"),
            *("embedding_scale", "scale_emb", "scale_embedding", "embeddings_scale_by_sqrt_dim"),
            *("scale_depth", "dim_model_base", "mup_enabled", "routed_scaling_factor"),
            *("moe_routed_scaling_factor", "residual_scale"),
        ),
    ),
    (
        "changes the scale of attention scores",
        (0,),
        (
            *("qk_scale_factor", "softmax_scale", "attn_temperature_tuning", "use_logn_attn"),
            *("llama_4_scaling_beta", "scale_attn_by_inverse_layer_idx"),
        ),
    ),
    (
        "adds attention sinks",
        (0,),
        (
            *("use_attention_sinks", "attention_sink", "learnable_sink"),
            *("add_swa_attention_sink_bias", "add_full_attention_sink_bias"),
        ),
    ),
    ("lets tokens attend to later ones", (0,), ("use_bidirectional_attention", "bidirectional")),
    ("lets tokens attend to later ones", (True,), ("is_causal",)),
    (
        "limits or shares some layers' attention",
        (0,),
        (
            *("attention_chunk_size", "sliding_window_pattern", "num_kv_shared_layers", "use_cla"),
            *("cla_share_factor", "enable_depth_attention", "loop_window_size"),
        ),
    ),
    ("runs layers several times", (1,), ("num_loops", "loop_num", "total_ut_steps")),
    (
        "gates the attention's output",
        (0,),
        ("headwise_attn_output_gate", "elementwise_attn_output_gate", "use_attention_gate"),
    ),
    (
        "computes attention and MLP in parallel",
        (0,),
        ("use_parallel_residual", "parallel_attn", "parallel_residual"),
    ),
    (
        "removes RoPE from some layers or adds another position encoding",
        (0,),
        ("no_rope_layer_interval", "alibi", "use_alibi", "use_dynamic_ntk", "layer_rope_theta"),
    ),
    ("removes RoPE from some layers", (1,), ("no_rope_layers",)),
    ("replaces RoPE", ("rope", "rotary"), ("position_embedding_type",)),
    (
        "changes which features RoPE rotates together",
        (0,),
        ("rope_interleave", "rope_interleaved", "rope_traditional", "rope_local_base_freq"),
    ),
    ("rotates a part of each head", (1,), ("rotary_pct",)),
    (
        "changes or adds norms",
        ("rms_norm", "rmsnorm", "RMSNorm", False),
        ("norm_type", "normalization_type", "post_norm", "use_sandwich_norm", "use_gemma_norm"),
    ),
    ("normalizes the LM head or its logits", (0,), ("norm_head", "norm_softmax")),
    (
        "replaces the activation function",
        ("silu", "swish"),
        ("activation_function", "activation", "mlp_hidden_act"),
    ),
    ("changes the router", ("softmax",), ("scoring_func", "moe_router_activation_func")),
    ("changes the router", (0, 1), ("n_group", "topk_group")),
    ("adds embeddings to each layer", (0,), ("hidden_size_per_layer_input", "ple_embed_dim")),
)

# Ignored without a report: fields about training, generation, files and other models.
METADATA = (
    *("_*", "*_token_id", "*_token_index", "*dtype", "*dropout", "*_pdrop", "*version", "*name*"),
    *("vision_*", "unsloth_*", "mm_*", "mtp_*", "output_*", "quantization*", "architectures"),
    *("*projector_*", "spatial_merge_size"),
    *("attn_implementation", "cache_implementation"),
    *(
        "initializer_range",
        "experts_per_token",
        "initial_context_length",
        "keys_to_ignore_at_inference",
        "pretraining_tp",
        "router_aux_loss_coef",
    ),
    *("tokenizer_class", "use_cache"),
)
EMPTY: tuple[Any, ...] = (None, False, 0, "", [], {})


class ReadFields(dict[str, Any]):
    def __init__(self, fields: Fields):
        super().__init__(fields)
        self.names_read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.names_read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.names_read.add(name)
        return super().get(name, default)

    def ignored(self) -> list[str]:
        """Names of the unread fields with a value, other than `METADATA`."""
        return [
            name
            for name, value in self.items()
            if name not in self.names_read
            and value not in EMPTY
            and not any(fnmatch(name, pattern) for pattern in METADATA)
        ]


def reject_unsupported(fields: Fields, supported: Collection[str] = (), **neutral: Any) -> None:
    """Rejects the fields in `UNSUPPORTED` and `neutral` unless they have neutral values.

    `supported` names fields that the model's family implements.
    """
    rows = (*UNSUPPORTED, *(("changes attention", (v,), (name,)) for name, v in neutral.items()))
    for change, allowed, names in rows:
        for name in (each for each in names if each not in supported):
            value = fields.get(name)
            parts = value if isinstance(value, list) else [value]
            if not all(part is None or part in allowed for part in parts):
                raise ValueError(
                    f"config.json has {name} {short_repr(value)}, which {change}; this is not "
                    "implemented"
                )


def text_fields(config: Fields) -> Fields:
    """The language model's fields: the outer ones, overridden by `text_config`.

    As in transformers, the outer `tie_word_embeddings` counts: the inner one may be a default.
    Configs of families other than `NESTED_FAMILIES`, and those without `text_config`, are returned
    unchanged.

    Raises:
        ValueError: `text_config` is not an object, or has another family.
    """
    text, families = config.get("text_config"), NESTED_FAMILIES.get(str(config.get("model_type")))
    if families is None or text is None:
        return config
    if not isinstance(text, Mapping):
        raise invalid_field("text_config", text, "an object")
    family = text.get("model_type", families[0])
    if family not in families:
        raise ValueError(
            f"config.json has model_type {short_repr(family)} in text_config, expected "
            f"{' or '.join(map(repr, families))}"
        )
    outer = {name: value for name, value in config.items() if name != "text_config"}
    inner = {name: value for name, value in text.items() if value is not None}
    if outer.get("tie_word_embeddings") is not None:
        inner["tie_word_embeddings"] = outer["tie_word_embeddings"]
    return {**outer, **inner, "model_type": family}


def invalid_field(
    name: str, value: Any, expected: object, where: str | Path = "config.json"
) -> ValueError:
    return ValueError(f"{where} has {name} {short_repr(value)}, expected {expected}")


def required_field(fields: Fields, name: str) -> Any:
    if name not in fields:
        raise ValueError(f"config.json has no {name}")
    return fields[name]


def positive_int(
    fields: Fields, name: str, default: int | None = None, most: float = MAX_INT32
) -> int:
    """Value of a positive integer field, at most `most`.

    `default` replaces a missing or null value; None makes the field required.
    """
    if default is not None and fields.get(name) is None:
        return default
    value = required_field(fields, name)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise invalid_field(name, value, "a positive integer")
    if value > most:
        raise invalid_field(name, value, f"at most {most}")
    return value


def non_negative_int(fields: Fields, name: str, default: int) -> int:
    value = default if fields.get(name) is None else fields[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise invalid_field(name, value, "a non-negative integer")
    return value


def positive_float(fields: Fields, name: str, default: float | None = None) -> float:
    """Value of a positive numeric field; see `positive_int`."""
    if default is not None and fields.get(name) is None:
        return default
    value = required_field(fields, name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < MAX_NUMBER:
        raise invalid_field(name, value, "a positive number")
    return value


def boolean(fields: Fields, name: str, default: bool = False) -> bool:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise invalid_field(name, value, "true or false")
    return value


def non_negative_ints(fields: Fields, name: str) -> list[int] | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(x) is int and x >= 0 for x in value):
        raise invalid_field(name, value, "a list of non-negative integers")
    return value
