"""Config fields of other tools: ignored if they do not change the computation, else refused."""

import pytest

from tests.models.support import FAMILIES, HYBRID, MIXTURE
from tiny_llm.models.checkpoint.quantization import check_quantization
from tiny_llm.models.families.config_fields import METADATA, UNSUPPORTED
from tiny_llm.models.families.registry import read_config

QWEN3, LLAMA = FAMILIES["qwen3"], FAMILIES["llama"]
NESTED = {"model_type": "qwen3_5", "text_config": HYBRID, "vision_config": {"depth": 2}}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

# Fields that `to_dict()` adds in transformers 4, with their defaults.
DUMP = {
    "return_dict": True,
    "num_beams": 1,
    "max_length": 20,
    "temperature": 1.0,
    "top_k": 50,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
    "label2id": {"LABEL_0": 0, "LABEL_1": 1},
    "is_decoder": False,
    "pruned_heads": {},
    "problem_type": None,
    "chunk_size_feed_forward": 0,
}
SAMPLING = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}


@pytest.mark.parametrize(
    ("config", "extra", "ignored"),
    [
        # mlx_vlm.convert
        (
            NESTED,
            {**SAMPLING, "generation_config": {"top_k": 20}},
            [*SAMPLING, "generation_config"],
        ),
        # Qwen3-Coder
        (
            MIXTURE,
            {"use_qk_norm": True, "qkv_bias": False, "shared_expert_intermediate_size": 0},
            [],
        ),
        # SmolLM2
        (
            LLAMA,
            {"is_llama_config": True, "transformers.js_config": {"dtype": "q4"}},
            ["is_llama_config", "transformers.js_config"],
        ),
        # Unsloth's merges, text-only exports, OptiQ
        (NESTED, {"model_name": "unsloth/Qwen3.5", "unsloth_fixed": True}, []),
        (HYBRID, {"language_model_only": True}, ["language_model_only"]),
        (
            HYBRID,
            {"mtp_file": "mtp.safetensors", "optiq_vision": {"file": "optiq/v.safetensors"}},
            ["optiq_vision"],
        ),
        (
            QWEN3,
            DUMP,
            [name for name, value in DUMP.items() if value not in (None, False, 0, {}, [])],
        ),
        (
            QWEN3,
            {"gradient_checkpointing": True, "experts_implementation": "eager"},
            ["gradient_checkpointing", "experts_implementation"],
        ),
        # neutral values of fields that could change the computation
        (QWEN3, {"query_pre_attn_scalar": 32, "final_logit_softcapping": None, "n_group": 1}, []),
        (QWEN3, {"embedding_multiplier": 1.0, "no_rope_layers": [1, 1], "is_causal": True}, []),
        (LLAMA, {"use_qk_norm": False, "rotary_pct": 1, "hidden_activation": "silu"}, []),
    ],
)
def test_ignored_fields(config, extra, ignored):
    plain, parsed = read_config(config), read_config({**config, **extra})
    assert parsed == plain
    assert sorted(parsed.ignored_fields) == sorted(ignored)


@pytest.mark.parametrize(
    ("extra", "ignored"),
    [
        ({"finetuned": True}, "finetuned"),  # DeepSeek's coders
        ({"attn_factor": 0.8782488562869419}, "attn_factor"),  # DeepSeek-R1-0528-Qwen3-8B
    ],
)
def test_ignored_rope_fields(extra, ignored):
    plain = read_config({**QWEN3, "rope_scaling": YARN})
    parsed = read_config({**QWEN3, "rope_scaling": {**YARN, **extra}})
    assert parsed == plain
    assert parsed.ignored_fields == (f"rope_scaling.{ignored}",)


def test_original_context_of_the_config_takes_precedence():
    config = {**QWEN3, "rope_scaling": YARN, "original_max_position_embeddings": 128}
    assert read_config(config).rope_scaling.original_context == 128


def test_ignored_quantization_fields():
    check_quantization({"quantization": {"bits": 4, "quant_method": "mlx", "linear_class": "a"}})


@pytest.mark.parametrize("name", [name for _, _, names in UNSUPPORTED for name in names])
def test_fields_that_change_the_computation_are_refused(name):
    with pytest.raises(ValueError, match=f"config.json has {name} 0.37, which .*not implemented"):
        read_config({**QWEN3, name: 0.37})
    assert read_config({**QWEN3, name: None}) == read_config(QWEN3)


def test_lists_are_disjoint():
    names = [name for _, _, names in UNSUPPORTED for name in names]
    assert len(names) == len(set(names))
    assert not set(names) & set(METADATA)
