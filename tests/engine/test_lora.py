"""Per-request LoRA adapters: same tokens and logits in every configuration."""

import pytest

from tests.engine.hybrid import CONFIG as HYBRID
from tests.engine.hybrid import build as build_hybrid
from tests.engine.hybrid import write_hybrid
from tests.models.lora_adapters.support import random_adapter, write_adapter
from tiny_llm import LLM, SamplingParams, UserError, load_weights

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def test_prompt_logprobs_and_several_completions(demo, adapters):
    params = SamplingParams(seed=3, n=2, max_tokens=6, prompt_logprobs=0, ignore_eos=True)
    llm = LLM(demo, lora_modules=adapters)
    [adapted] = llm.generate(["Paged attention is"], params, lora="a")
    [plain] = llm.generate(["Paged attention is"], params)
    assert adapted.prompt_logprobs[1:] != plain.prompt_logprobs[1:]
    [again] = LLM(demo, adapter_path=adapters["a"]).generate(["Paged attention is"], params)
    assert again.prompt_logprobs == adapted.prompt_logprobs


def test_precompute_for_an_adapter(demo, adapters):
    llm = LLM(demo, lora_modules=adapters, block_size=4)
    prompt = llm.tokenizer.encode("The KV cache keeps keys and values. " * 3)
    while llm.precompute(prompt, "a"):
        pass
    [plain] = llm.generate([prompt], GREEDY)
    assert plain.num_cached_tokens == 0
    [adapted] = llm.generate([prompt], GREEDY, lora="a")
    assert adapted.num_cached_tokens > 10


def test_hybrid_model(tmp_path):
    """Only requests with the same adapter may share state checkpoints."""
    folder = write_hybrid(tmp_path / "model")
    tensors = [random_adapter(HYBRID, rank, seed=rank, size=0.3) for rank in (3, 8)]
    names = {"a": write_adapter(tmp_path / "a", tensors[0], 3)}
    names["b"] = write_adapter(tmp_path / "b", tensors[1], 8)
    model = load_weights(str(folder))
    prompts = ["The trams of Lenmora are yellow. " * 12] * 3
    loras = [None, "a", "b"]
    reference = [
        build_hybrid(model, lora_modules=names).generate([prompt], GREEDY, lora=lora)[0].token_ids
        for prompt, lora in zip(prompts, loras, strict=True)
    ]
    assert len({tuple(tokens) for tokens in reference}) == 3
    llm = build_hybrid(model, lora_modules=names, max_num_batched_tokens=40)
    for _ in range(2):  # the second run starts from checkpoints
        outputs = llm.generate(prompts, GREEDY, lora=loras)
        assert [output.token_ids for output in outputs] == reference
        llm.scheduler.check_integrity()
    assert all(output.num_cached_tokens > 0 for output in outputs)


def test_unknown_names_are_rejected(demo, adapters):
    llm = LLM(demo, lora_modules=adapters)
    with pytest.raises(UserError, match="lora must be one of a, b, wide, got 'c'."):
        llm.add_request("RoPE", GREEDY, lora="c")
    [output] = llm.generate(["RoPE"], GREEDY, lora="c")
    assert output.error == "lora must be one of a, b, wide, got 'c'."
    with pytest.raises(UserError, match="one lora entry per prompt, got 2 for 1 prompts"):
        llm.generate(["RoPE"], GREEDY, lora=["a", "b"])
    with pytest.raises(UserError, match="lora must be None: no adapters are loaded, got 'a'"):
        LLM(demo).add_request("RoPE", GREEDY, lora="a")
