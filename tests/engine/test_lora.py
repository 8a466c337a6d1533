"""Per-request LoRA adapters: same tokens and logits in every configuration."""

import pytest

from tests.engine.hybrid import CONFIG as HYBRID
from tests.engine.hybrid import build as build_hybrid
from tests.engine.hybrid import write_hybrid
from tests.engine.support import MORE_CASES, assert_same_outputs, run_alone, run_cases
from tests.engine.test_batch_invariance import (
    AMPLE_TOKENS,
    HALF,
    TIGHT_TOKENS,
    build,
    build_case,
    run_configurations,
)
from tests.models.lora.support import random_adapter, write_adapter
from tiny_llm import LLM, SamplingParams, UserError, load, load_weights
from tiny_llm.demo import TARGET_PATH
from tiny_llm.models.checkpoint.layout import read_model_config

DEMO = read_model_config(TARGET_PATH)
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
# Adapter of each case, or None. Of the cases with a common prefix, some have the same adapter and
# others have different ones.
LORAS = {0: None, 1: "a", 2: "b", 3: "b", 4: "a", 5: "wide", 6: None}


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """Adapters of odd ranks: for all layers, the last two layers, and the MLPs."""
    folder = tmp_path_factory.mktemp("adapters")
    last_two = {"rank": 3, "seed": 2, "last": 2, "size": 0.2}
    wide = {"rank": 37, "seed": 3, "only": ("up_proj", "down_proj"), "size": 0.2}
    return {
        "a": write_adapter(folder / "a", random_adapter(DEMO, 5, seed=1, size=0.2), 5),
        "b": write_adapter(folder / "b", random_adapter(DEMO, **last_two), 3, num_layers=2),
        "wide": write_adapter(folder / "wide", random_adapter(DEMO, **wide), 37),
    }


@pytest.fixture(scope="module")
def reference(demo, modules):
    """Reference outputs and logits: each request alone, with its adapter alone."""

    def make_llm(case: int) -> LLM:
        lora = LORAS[case]
        module = {lora: modules[lora]} if lora else None
        options = {"max_num_seqs": 1, "enable_prefix_caching": False, "lora_modules": module}
        return build(demo, AMPLE_TOKENS, **options)

    return run_alone(make_llm, MORE_CASES, LORAS)


@pytest.mark.slow
def test_batch_with_ngram_drafts_and_preemption(demo, modules, reference):
    options = {"block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 35}
    llm = build(demo, TIGHT_TOKENS, speculative="ngram", lora_modules=modules, **options)
    assert_same_outputs(*run_cases(llm, range(len(MORE_CASES)), 0, MORE_CASES, LORAS), reference)
    assert llm.runner.statistics.num_accepted_tokens > 0
    assert llm.scheduler.num_preemptions > 0


def test_adapters_in_one_batch(demo, modules, reference):
    llm = build(demo, AMPLE_TOKENS, max_num_seqs=8, lora_modules=modules)
    assert_same_outputs(*run_cases(llm, range(len(MORE_CASES)), 0, MORE_CASES, LORAS), reference)


@pytest.mark.slow
def test_configurations_with_a_draft_model(demo, modules, reference):
    draft = load("demo-draft")
    counts = run_configurations(
        HALF[::5],
        lambda case: build_case(demo, draft, case, lora_modules=modules),
        reference,
        LORAS,
    )
    assert min(counts) > 0


def test_adapters_do_not_share_pages(demo, modules):
    llm = LLM(demo, lora_modules=modules, block_size=4)
    prompt, cached = "The KV cache keeps keys and values. " * 3, []
    for lora in (None, "a", "b", "a", None):
        [output] = llm.generate([prompt], GREEDY, lora=lora)
        cached.append(output.num_cached_tokens)
    assert cached[:3] == [0, 0, 0]
    assert min(cached[3:]) > 10
    llm.scheduler.check_integrity()


def test_adapter_path_applies_to_every_request(demo, modules):
    with_modules = LLM(demo, lora_modules=modules)
    expected = with_modules.generate(["RoPE is", "Attention"], GREEDY, lora="a")
    plain = with_modules.generate(["RoPE is", "Attention"], GREEDY)
    assert plain[0].token_ids != expected[0].token_ids
    llm = LLM(demo, adapter_path=modules["a"])
    actual = llm.generate(["RoPE is", "Attention"], GREEDY)
    assert [a.token_ids for a in actual] == [e.token_ids for e in expected]
    outputs = with_modules.generate(["RoPE is", "RoPE is"], GREEDY, lora=[None, "a"])
    assert [output.token_ids for output in outputs] == [plain[0].token_ids, expected[0].token_ids]


def test_prompt_logprobs_and_several_completions(demo, modules):
    params = SamplingParams(seed=3, n=2, max_tokens=6, prompt_logprobs=0, ignore_eos=True)
    llm = LLM(demo, lora_modules=modules)
    [adapted] = llm.generate(["Paged attention is"], params, lora="a")
    [plain] = llm.generate(["Paged attention is"], params)
    assert adapted.prompt_logprobs[1:] != plain.prompt_logprobs[1:]
    [again] = LLM(demo, adapter_path=modules["a"]).generate(["Paged attention is"], params)
    assert again.prompt_logprobs == adapted.prompt_logprobs


def test_precompute_for_an_adapter(demo, modules):
    llm = LLM(demo, lora_modules=modules, block_size=4)
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"adapter_path": "x", "lora_modules": {"a": "y"}},
            "adapter_path and lora_modules cannot be combined; pass all adapters in lora_modules.",
        ),
        ({"lora_modules": ["a=y"]}, "lora_modules must map names to folders, got ['a=y']."),
        ({"lora_modules": {"": "y"}}, "lora_modules must map names to folders, got {'': 'y'}."),
        ({"adapter_path": 3}, "adapter_path must be a path, got 3."),
        (
            {"adapter_path": "no/folder"},
            "the adapter 'no/folder' is not a folder; specify the output folder of `mlx_lm.lora` "
            "or PEFT.",
        ),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(UserError) as error:
        LLM("demo", **options)
    assert str(error.value) == message


def test_unknown_names_are_rejected(demo, modules):
    llm = LLM(demo, lora_modules=modules)
    with pytest.raises(UserError, match="lora must be one of a, b, wide, got 'c'."):
        llm.add_request("RoPE", GREEDY, lora="c")
    [output] = llm.generate(["RoPE"], GREEDY, lora="c")
    assert output.error == "lora must be one of a, b, wide, got 'c'."
    with pytest.raises(UserError, match="one lora entry per prompt, got 2 for 1 prompts"):
        llm.generate(["RoPE"], GREEDY, lora=["a", "b"])
    with pytest.raises(UserError, match="lora must be None: no adapters are loaded, got 'a'"):
        LLM(demo).add_request("RoPE", GREEDY, lora="a")
