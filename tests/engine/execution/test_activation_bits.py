"""`activation_bits=8`: batch invariance, accuracy, 16-bit gates, errors."""

import json

import mlx.core as mx
import pytest

from tests.models.support import FAMILIES, MIXTURE
from tests.support import assert_same_bits, random
from tiny_llm import LLM, SamplingParams, UserError, kernels, load_weights
from tiny_llm.models.families.linear import with_8_bit_activations
from tiny_llm.models.loading import serving_model
from tiny_llm.models.lora_adapters import attach_adapters

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
PROMPTS = [[17, 5, 99], list(range(100, 140)), [4, 8]]

pytestmark = pytest.mark.skipif(
    kernels.prepack_rows() == 0, reason="needs CPU kernels with vector instructions"
)


def test_gates_remain_exact_and_the_model_is_not_changed(tmp_path):
    config = {**MIXTURE, "quantization": {"group_size": 64, "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model, _ = load_weights(str(tmp_path), load_format="dummy", with_tokenizer=False)
    rounded = with_8_bit_activations(model, mx.bfloat16)
    bits = {
        path.split(".")[-1]: getattr(layer, "activation_bits", 16)
        for path, layer in rounded.named_modules()
        if "scales" in layer
    }
    assert bits.pop("gate") == 16
    assert set(bits.values()) == {8}
    assert {"q_proj", "up_proj", "embed_tokens"} <= set(bits)
    assert not any(hasattr(layer, "activation_bits") for layer in model.modules())


def assert_batch_invariant(llm, prompts, params, loras=None):
    """Serves the prompts together and alone; returns the outputs."""
    loras = loras or [None] * len(prompts)
    together = llm.generate(prompts, params, lora=loras, use_tqdm=False)
    for prompt, lora, output in zip(prompts, loras, together, strict=True):
        [alone] = llm.generate([prompt], params, lora=lora, use_tqdm=False)
        assert (alone.token_ids, alone.logprobs) == (output.token_ids, output.logprobs), lora
    return together


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("config", [MIXTURE, FAMILIES["qwen3"]], ids=["experts", "dense"])
def test_quantized_models_are_batch_invariant(tmp_path, config, bits):
    quantization = {"group_size": 64, "bits": bits}
    config = {**config, "vocab_size": 4097, "quantization": quantization}
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = {"load_format": "dummy", "enable_prefix_caching": False}
    steps = {"max_num_seqs": 3, "max_num_batched_tokens": 20}
    llm = LLM(str(tmp_path), activation_bits=8, **steps, **options)
    together = assert_batch_invariant(llm, PROMPTS, PARAMS)
    exact = LLM(str(tmp_path), **options).generate(PROMPTS, PARAMS, use_tqdm=False)
    assert [output.logprobs for output in exact] != [output.logprobs for output in together]


def test_adapters_are_batch_invariant(demo, adapters):
    loras = [None, "a", "b"]
    prompts = ["The KV cache keeps keys and values. " * 3] * len(loras)
    options = {"activation_bits": 8, "enable_prefix_caching": False, "lora_modules": adapters}
    llm = LLM(demo, max_num_batched_tokens=40, **options)
    together = assert_batch_invariant(llm, prompts, PARAMS, loras)
    assert len({tuple(output.token_ids) for output in together}) == len(loras)


def test_adapters_use_exact_activations(adapters):
    """Adapters are applied to the layer's input before rounding to 8 bits."""
    weights, _ = load_weights("demo")
    model = serving_model("demo", weights, page_size=16, activation_bits=8)
    mlp, x = model.blocks[0].mlp, random(1, 7, 768, dtype=mx.bfloat16)
    plain = mlp.down_proj(x)
    attach_adapters(model, [adapters["a"]])
    model.adapters.ids = mx.zeros(7, mx.int32)
    lora = mlp.down_proj.lora
    expected = kernels.add_lora(plain, x, lora.a, lora.b, lora.rank_offsets, model.adapters.ids)
    assert_same_bits(mlp.down_proj(x), expected, "adapted layer")
    assert not mx.array_equal(expected, plain)


def test_unsupported_models_and_kernels_are_rejected(tmp_path, monkeypatch):
    config = {**FAMILIES["qwen3"], "vocab_size": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="requires 4- or 8-bit weights and 16-bit activations"):
        LLM(str(tmp_path), load_format="dummy", activation_bits=8)
    monkeypatch.setenv("TINY_LLM_CPU_ISA", "portable")
    with pytest.raises(UserError, match="requires a CPU that the extension"):
        LLM("demo", activation_bits=8)
