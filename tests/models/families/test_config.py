"""Configs of all families: parsed fields, ignored ones, and configs that are refused."""

from operator import attrgetter

import pytest

from tests.models.support import FAMILIES, GEMMA4, HYBRID, HYBRID_MIXTURE, MIXTURE, SIZES
from tiny_llm.models.checkpoint.tensor_shapes import check_quantization
from tiny_llm.models.families.config import LocalRope, MoEConfig, SlidingWindow
from tiny_llm.models.families.config_fields import METADATA, UNSUPPORTED
from tiny_llm.models.families.registry import read_config
from tiny_llm.models.families.rope import QueryScaling

# The published config of Gemma 3 4B omits the fields that equal transformers' defaults.
GEMMA3_TEXT = {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}
NESTED = {"model_type": "qwen3_5", "text_config": HYBRID, "tie_word_embeddings": True}
CONFIGS = {
    **FAMILIES,
    "mistral": {**SIZES, "model_type": "mistral"},
    "qwen3_moe": MIXTURE,
    "hybrid": HYBRID,
    "hybrid_moe": HYBRID_MIXTURE,
    "nested": {**NESTED, "vision_config": {"depth": 2}, "image_token_id": 5},
    "gemma3": {"model_type": "gemma3", "mm_tokens_per_image": 256, "text_config": GEMMA3_TEXT},
    "mistral3": {"model_type": "mistral3", "text_config": FAMILIES["ministral3"]},
    "gemma4": GEMMA4,
}


def parse(family, changes):
    """Parsed config of a family with some fields replaced, or removed if they are `...`."""
    fields = {**CONFIGS[family], **changes}
    return read_config({name: value for name, value in fields.items() if value is not ...})


SLIDING, FULL, LINEAR_ATTENTION = "sliding_attention", "full_attention", "linear_attention"
GEMMA3_SLIDING = frozenset(i for i in range(34) if i % 6 != 5)
ON = {"use_sliding_window": True, "sliding_window": 64}
BOTH, LAST = (SlidingWindow(64, frozenset(layers)) for layers in ((0, 1), (1,)))
NO_WINDOW = {"sliding_window": None}
THETA = {"rope_theta": 5e5}
ORIGINAL = {"original_max_position_embeddings": 256}  # takes precedence
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LINEAR = {"type": "linear", "factor": 2}
LLAMA3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}
ROPE = HYBRID["rope_parameters"]
MROPE = {**ROPE, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
MIXED = [LINEAR_ATTENTION, FULL, FULL, LINEAR_ATTENTION]

# (family, changes, expected attributes).
PARSED = [
    ("gemma3", {}, {"max_position_embeddings": 131_072, "rope_theta": 1e6}),
    ("gemma3", {}, {"local_rope": LocalRope(1e4, GEMMA3_SLIDING), "ignored_fields": ()}),
    ("gemma3", {}, {"sliding_window": SlidingWindow(1024, GEMMA3_SLIDING)}),
    ("gemma3", {}, {"embedding_scale": 2560**0.5, "attention_scale": 1 / 16}),
    ("gemma3", {}, {"vocab_size": 262_208, "tie_word_embeddings": True}),
    ("llama", {}, {"head_dim": 32, "qkv_bias": True, "o_proj_bias": True, "qk_norm": False}),
    ("llama", {"attention_bias": None, "mlp_bias": False}, {"qkv_bias": False}),
    ("qwen2", {}, {"qkv_bias": True, "o_proj_bias": False, "mlp_bias": False}),
    ("qwen3", {"head_dim": None}, {"head_dim": 128, "qk_norm": True}),
    ("llama", {"num_key_value_heads": None}, {"num_key_value_heads": 4}),
    ("llama", {"rope_theta": None}, {"rope_theta": 10000.0}),
    ("llama", {"rope_theta": None, "rope_parameters": THETA}, {**THETA, "rope_scaling": None}),
    ("qwen2", {"rope_scaling": YARN}, {"max_position_embeddings": 512}),
    ("llama", {"rope_scaling": LINEAR}, {"max_position_embeddings": 512}),
    ("qwen3", {"rope_scaling": YARN, **ORIGINAL}, {"rope_scaling.original_context": 256}),
    # a window of 4096 masks nothing in a context of at most 256 tokens
    ("mistral", {}, NO_WINDOW),
    ("mistral", {"sliding_window": 256}, NO_WINDOW),
    ("mistral", {"sliding_window": 64}, {"sliding_window": BOTH, "max_position_embeddings": 256}),
    ("mistral", {"max_position_embeddings": 8192}, {"sliding_window.size": 4096}),
    ("mistral", {"max_position_embeddings": 8192, **NO_WINDOW}, NO_WINDOW),
    ("mistral", {"sliding_window": 64, "layer_types": [FULL] * 2}, {"sliding_window": BOTH}),
    ("qwen2", {"sliding_window": 64}, NO_WINDOW),
    # no layer has a window, because max_window_layers defaults to 28
    ("qwen2", ON, NO_WINDOW),
    ("qwen2", {**ON, "max_window_layers": 1}, {"sliding_window": LAST}),
    ("qwen2", {**ON, "max_window_layers": 1}, {"max_position_embeddings": 256}),
    ("qwen2", {**ON, "max_window_layers": 2}, NO_WINDOW),
    ("qwen2", {**ON, "max_window_layers": 0}, {"sliding_window": BOTH}),
    ("qwen2", {**ON, "layer_types": [FULL, SLIDING]}, {"sliding_window": LAST}),
    ("qwen3_moe", {**ON, "max_window_layers": 28}, {"sliding_window": BOTH}),
    # transformers also ignores Llama's sliding_window
    ("llama", {"sliding_window": 64}, NO_WINDOW),
    ("qwen3_moe", {"decoder_sparse_step": 2}, {"experts": MoEConfig(6, 2, 64, True, {1})}),
    ("qwen3_moe", {"mlp_only_layers": [0, 1]}, {"experts": MoEConfig(6, 2, 64, True, set())}),
    ("qwen3_moe", {"num_local_experts": 6}, {"experts.num_experts": 6}),
    ("hybrid", {}, {"rotary_dim": 8, "attn_output_gate": True, "num_kv_layers": 2}),
    ("nested", {"hidden_size": 64}, {"model_type": "qwen3_5_text", "hidden_size": 128}),
    ("mistral3", {}, {"model_type": "ministral3", "query_scaling": QueryScaling(0.4, 32)}),
    ("mistral3", {}, {**NO_WINDOW, "max_position_embeddings": 256, "ignored_fields": ()}),
    ("mistral3", {"text_config": SIZES}, {"model_type": "mistral", "query_scaling": None}),
    ("hybrid", {"rope_parameters": MROPE}, {"rope_scaling": None}),
    ("hybrid", {"rope_parameters": {**ROPE, "partial_rotary_factor": 1}}, {"rotary_dim": None}),
    ("hybrid", {"rope_parameters": ..., "partial_rotary_factor": 0.5}, {"rotary_dim": 16}),
    ("hybrid", {"rope_parameters": ..., "partial_rotary_factor": 0.5}, {"rope_theta": 10000.0}),
    ("hybrid", {"rope_parameters": ...}, {"rotary_dim": 8}),
    ("hybrid", {"layer_types": MIXED}, {"num_kv_layers": 2, "delta_net.layers": (0, 3)}),
    ("hybrid", {}, {"delta_net.key_dim": 48, "delta_net.value_dim": 128}),
    ("hybrid", {}, {"delta_net.conv_channels": 224}),
    ("hybrid", {"full_attention_interval": None}, {"num_kv_layers": 1}),
    # transformers writes the text config's default
    ("nested", {"tie_word_embeddings": False}, {"tie_word_embeddings": False}),
    ("hybrid", {"mtp_num_hidden_layers": 1, "output_gate_type": "swish"}, {}),
    ("hybrid_moe", {}, {"intermediate_size": 64, "experts.norm_topk_prob": True}),
    ("hybrid_moe", {}, {"experts.shared_expert_intermediate_size": 128}),
]


@pytest.mark.parametrize(("family", "changes", "expected"), PARSED)
def test_parsed_fields(family, changes, expected):
    config = parse(family, changes)
    assert {name: attrgetter(name)(config) for name in expected} == expected


def test_last_layer_of_gemma4_attends_to_all_keys():
    config = parse("gemma4", {"layer_types": [SLIDING] * 6, "num_kv_shared_layers": 0})
    assert config.sliding_window.layers == frozenset(range(5))
    assert [config.kv_shape_of(layer) for layer in (4, 5)] == [(1, 32), (1, 64)]


# Fields that `to_dict()` adds in transformers 4, with their defaults.
DUMP = {"return_dict": True, "num_beams": 1, "max_length": 20, "temperature": 1.0, "top_k": 50}
DUMP |= {"typical_p": 1.0, "repetition_penalty": 1.0, "id2label": {"0": "LABEL_0"}}
NEUTRAL = {"is_decoder": False, "pruned_heads": {}, "problem_type": None}
SAMPLING = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "generation_config": {"top_k": 1}}
SMOLLM2 = {"is_llama_config": True, "transformers.js_config": {"dtype": "q4"}}
CODER = {"use_qk_norm": True, "qkv_bias": False, "shared_expert_intermediate_size": 0}
TRAINING = {"gradient_checkpointing": True, "experts_implementation": "eager"}
OPTIQ = {"file": "optiq/v.safetensors"}

# (family, fields of other tools, those of them that are reported as ignored). They change nothing.
IGNORED = [
    ("nested", SAMPLING, SAMPLING),  # mlx_vlm.convert
    ("qwen3_moe", CODER, ()),  # Qwen3-Coder
    ("llama", SMOLLM2, SMOLLM2),
    # Unsloth's merges, text-only exports, OptiQ
    ("nested", {"model_name": "unsloth/Qwen3.5", "unsloth_fixed": True}, ()),
    ("hybrid", {"language_model_only": True}, ("language_model_only",)),
    ("hybrid", {"mtp_file": "mtp.safetensors", "optiq_vision": OPTIQ}, ("optiq_vision",)),
    ("hybrid", {"num_experts": 4, "text_config": HYBRID}, ("num_experts", "text_config")),
    ("hybrid", {"use_sliding_window": True}, ("use_sliding_window",)),
    ("qwen3", {**DUMP, **NEUTRAL, "chunk_size_feed_forward": 0}, DUMP),
    ("qwen3", TRAINING, TRAINING),
    ("llama", {"unsloth_version": "1", "_name": "x", "use_mrope": False}, ()),
    ("llama", {"num_experts": 8}, ("num_experts",)),
    # neutral values of fields that could change the computation
    ("qwen3", {"query_pre_attn_scalar": 32, "final_logit_softcapping": None, "n_group": 1}, ()),
    ("qwen3", {"embedding_multiplier": 1.0, "no_rope_layers": [1, 1], "is_causal": True}, ()),
    ("llama", {"use_qk_norm": False, "rotary_pct": 1, "hidden_activation": "silu"}, ()),
]


@pytest.mark.parametrize(("family", "extra", "ignored"), IGNORED)
def test_ignored_fields(family, extra, ignored):
    config = parse(family, extra)
    assert config == parse(family, {})
    assert sorted(config.ignored_fields) == sorted(ignored)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("finetuned", True),  # DeepSeek's coders
        ("attn_factor", 0.8782488562869419),  # DeepSeek-R1-0528-Qwen3-8B
        ("short_factor", [1]),
    ],
)
def test_ignored_rope_fields(name, value):
    config = parse("qwen3", {"rope_scaling": {**YARN, name: value}})
    assert config == parse("qwen3", {"rope_scaling": YARN})
    assert config.ignored_fields == (f"rope_scaling.{name}",)


def test_ignored_quantization_fields():
    check_quantization({"quantization": {"bits": 4, "quant_method": "mlx", "linear_class": "a"}})


@pytest.mark.parametrize("name", [name for _, _, names in UNSUPPORTED for name in names])
def test_fields_that_change_the_computation_are_refused(name):
    with pytest.raises(ValueError, match=f"config.json has {name} 0.37, which .*not implemented"):
        parse("qwen3", {name: 0.37})
    assert parse("qwen3", {name: None}) == parse("qwen3", {})


def test_lists_are_disjoint():
    names = [name for _, _, names in UNSUPPORTED for name in names]
    assert len(names) == len(set(names))
    assert not set(names) & set(METADATA)


LOCAL_LINEAR = {SLIDING: {"rope_type": "linear"}}
OTHER_TEXT = {**HYBRID, "model_type": "llama"}

# (family, changes, error).
REFUSED = [
    ("llama", {"model_type": "gemma2"}, "type 'gemma2' is not supported; supported types are qwen"),
    ("llama", {"model_type": ["llama"]}, r"type '\['llama'\]'"),
    ("gpt_oss", {"swiglu_limit": 5}, "swiglu_limit 5, expected 7.0"),
    ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0, which caps"),
    ("gemma3", {"use_bidirectional_attention": True}, "lets tokens attend to later ones"),
    ("gemma3", {"hidden_activation": "silu"}, "'silu', expected 'gelu_pytorch_tanh'"),
    ("gemma3", {"rope_parameters": LOCAL_LINEAR}, "expected 'default' in layers with a window"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act 'gelu', expected 'silu'"),
    ("llama", {"attn_logit_softcapping": 30.0}, "30.0, which caps scores, logits or activations"),
    ("llama", {"no_rope_layers": [1, 0]}, r"no_rope_layers \[1, 0\], which removes RoPE from"),
    ("llama", {"use_qk_norm": True}, "use_qk_norm True, which changes attention"),
    ("qwen3", {"query_pre_attn_scalar": 16}, "query_pre_attn_scalar 16, which"),
    ("llama", {"rope_scaling": {**YARN, "llama_4_scaling_beta": 0.1}}, "llama_4_scaling_beta"),
    ("llama", {"rope_parameters": {FULL: THETA}}, "expected the same RoPE in all layers"),
    ("qwen2", {"attention_bias": True}, "attention_bias true, which qwen2 does not support"),
    ("qwen3", {"mlp_bias": True}, "mlp_bias true, which qwen3 does not support"),
    ("llama", {"attention_bias": "yes"}, "attention_bias 'yes', expected true or false"),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2}}, "type 'dynamic'"),
    ("llama", {"rope_scaling": "linear"}, "rope_scaling 'linear', expected an object"),
    ("llama", {"rope_scaling": {"type": "linear"}}, "has no factor"),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ("llama", {"rope_parameters": 3}, "rope_parameters 3, expected an object"),
    ("llama", {"rope_scaling": LLAMA3}, "low_freq_factor 4, expected less than high_freq_factor, "),
    ("qwen2", {"layer_types": ["chunked_attention"]}, "expected a list of full_attention"),
    ("qwen2", {"layer_types": [FULL]}, "1 layer_types, expected 2, its num_hidden"),
    ("qwen2", {"max_window_layers": -1}, "max_window_layers -1, expected a non-negative"),
    ("qwen2", {"layer_types": [FULL, SLIDING]}, "1 sliding_att.* applies to 0 of 2 layers"),
    ("mistral", {"sliding_window": 9, "layer_types": [FULL, SLIDING]}, "1 slid.*s to 2 of 2 lay"),
    ("mistral", {"sliding_window": -1}, "sliding_window -1, expected a positive integer"),
    ("qwen3_moe", {"num_experts_per_tok": 7}, "num_experts_per_tok 7, expected at most num_exp"),
    ("qwen3_moe", {"mlp_only_layers": 1}, "mlp_only_layers 1, expected a list of non-negative"),
    ("qwen3_moe", {"mlp_only_layers": [-1]}, r"mlp_only_layers \[-1\], expected a list of non-n"),
    ("qwen3_moe", {"num_experts": 0}, "num_experts 0, expected a positive integer"),
    ("llama", {"num_attention_heads": 3}, "hidden_size 128 is not a multiple of .* 3"),
    ("llama", {"head_dim": 32, "num_attention_heads": 5}, "num_attention_heads 5.*_heads, 2"),
    ("llama", {"head_dim": 514}, "head_dim 514, expected an even number of at most 512"),
    ("llama", {"head_dim": 33}, "head_dim 33, expected an even number of at most 512"),
    ("llama", {"hidden_size": 4 * 33}, "head_dim 33"),
    (
        "mistral",
        {"model_type": "phi3", "rope_scaling": {"type": "yarn", "long_factor": [1]}},
        "rope_scaling type 'longrope', expected one of default",
    ),
    ("hybrid", {"linear_num_value_heads": 3}, "linear_num_value_heads 3, expected a multiple"),
    ("hybrid", {"linear_num_key_heads": 0}, "linear_num_key_heads 0, expected a positive"),
    ("hybrid", {"linear_key_head_dim": ...}, "has no linear_key_head_dim"),
    ("hybrid", {"linear_value_head_dim": 512}, "linear_value_head_dim 512, expected at most 25"),
    ("hybrid", {"num_hidden_layers": 2**31 - 1}, "num_hidden_layers 2147483647, expected at m"),
    ("hybrid", {"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim 1, expected 2 to 8"),
    ("hybrid", {"linear_conv_kernel_dim": 9}, "linear_conv_kernel_dim 9, expected 2 to 8"),
    ("hybrid", {"layer_types": MIXED[:2]}, "layer_types .*, expected 4 entries"),
    ("hybrid", {"layer_types": [LINEAR_ATTENTION] * 4}, "at least one of each"),
    ("hybrid", {"layer_types": [[], *MIXED[:2], "x"]}, "expected 4 entries"),
    ("hybrid", {"layer_types": "linear"}, "layer_types 'linear', expected 4 entries"),
    ("hybrid", {"full_attention_interval": 5}, "layer_types .*at least one of each"),
    ("hybrid", {"full_attention_interval": 0}, "full_attention_interval 0, expected a pos"),
    ("hybrid", {"output_gate_type": "sigmoid"}, "output_gate_type 'sigmoid', expected 'silu'"),
    ("hybrid", {"partial_rotary_factor": 2, "rope_parameters": None}, "partial_rotary_factor 2"),
    ("hybrid", {"rope_parameters": {"partial_rotary_factor": 0.1}}, "0.1 .* must be an even numb"),
    ("hybrid_moe", {"shared_expert_intermediate_size": ...}, "no shared_expert_intermedia"),
    ("nested", {"text_config": 3}, "text_config 3, expected an object"),
    ("nested", {"text_config": OTHER_TEXT}, "model_type 'llama' in text_config"),
    ("mistral3", {"text_config": HYBRID}, "'qwen3_5_text' in .*ed 'mistral' or 'ministral3'"),
    ("nested", {"text_config": {**HYBRID, "logit_scale": 2}}, "has logit_scale 2, which scales"),
    ("gemma4", {"use_bidirectional_attention": "all"}, "bidirectional_attention 'all', expected"),
    ("gemma4", {"num_kv_shared_layers": 5}, "num_kv_shared_layers 5, expected so few that each t"),
    ("gemma4", {"num_key_value_heads": 3}, "num_attention_heads 4, expected a multiple of"),
    ("gemma4", {"global_head_dim": 514}, "global_head_dim 514, expected an even number of at m"),
    ("gemma4", {"per_layer_config": [1]}, "per_layer_config .*, expected an object"),
    ("gemma4", {"enable_moe_block": True}, "config.json has no num_experts"),
    ("gemma4", {"vocab_size_per_layer_input": 99}, "vocab_size_per_layer_input 99, expected at l"),
    ("gemma4", {"hidden_activation": "gelu"}, "'gelu', expected 'gelu_pytorch_tanh'"),
]


@pytest.mark.parametrize(("family", "changes", "message"), REFUSED)
def test_unsupported_config_is_refused_by_name(family, changes, message):
    with pytest.raises(ValueError, match=message):
        parse(family, changes)
