"""`kv_cache_dtype="int8"`: batch invariance, capacity, accuracy."""

import math
from pathlib import Path

import pytest

from tests.engine.support import MORE_CASES, assert_same_outputs, run_alone, run_cases
from tests.engine.test_batch_invariance import (
    AMPLE_TOKENS,
    HALF,
    TIGHT_TOKENS,
    build,
    build_case,
    run_configurations,
)
from tiny_llm import LLM, SamplingParams, UserError, load

ROOT = Path(__file__).parents[3]


def build_int8(demo, tokens: int, draft=None, **options) -> LLM:
    """Builds an engine with 8-bit KV memory for about `tokens` tokens."""
    return build(demo, tokens * 17 // 32, draft, kv_cache_dtype="int8", **options)


@pytest.fixture(scope="module")
def reference(demo):
    """Reference outputs and logits: each request alone, prefilled in one chunk."""
    options = {"max_num_seqs": 1, "enable_prefix_caching": False}
    return run_alone(lambda case: build_int8(demo, AMPLE_TOKENS, **options), MORE_CASES)


@pytest.mark.slow
def test_configurations_with_a_draft_model(demo, reference):
    draft = load("demo-draft")
    counts = run_configurations(
        HALF[::4], lambda case: build_case(demo, draft, case, build_int8), reference
    )
    assert min(counts) > 0


@pytest.mark.slow
def test_with_ngram_proposer(demo, reference):
    options = {"block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 35}
    llm = build_int8(demo, TIGHT_TOKENS, speculative="ngram", **options)
    assert_same_outputs(*run_cases(llm, range(len(MORE_CASES)), 0, MORE_CASES), reference)
    assert llm.runner.statistics.num_accepted_tokens > 20
    assert llm.scheduler.num_preemptions > 0


def test_int8_holds_more_tokens_in_the_same_memory():
    def num_pages(kv_cache_dtype: str) -> int:
        llm = LLM("demo", kv_cache_bytes=2**24, kv_cache_dtype=kv_cache_dtype)
        return llm.scheduler.config.num_pages

    head_dim = load("demo")[0].args.head_dim
    assert num_pages("int8") / num_pages("auto") == pytest.approx(
        2 * head_dim / (head_dim + 4), rel=0.01
    )


@pytest.mark.slow
def test_perplexity_is_within_half_a_percent():
    text = (ROOT / "README.md").read_text()[:3000]

    def perplexity(kv_cache_dtype: str) -> float:
        llm = LLM("demo", kv_cache_dtype=kv_cache_dtype)
        params = SamplingParams(max_tokens=1, prompt_logprobs=0)
        [output] = llm.generate([text], params, use_tqdm=False)
        entries = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
        logprobs = [entry[token] for token, entry in entries]
        return math.exp(-sum(logprobs) / len(logprobs))

    assert perplexity("int8") == pytest.approx(perplexity("auto"), rel=0.005)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype must be 'auto' or 'int8', got 'fp8'."),
        ({"kv_cache_dtype": None}, "kv_cache_dtype must be 'auto' or 'int8', got None."),
        (
            {"kv_cache_dtype": "int8", "attention_backend": "flash"},
            "attention_backend='flash' does not support kv_cache_dtype='int8'; use 'paged' or "
            "'reference'.",
        ),
    ],
)
def test_invalid_dtypes_are_rejected(options, message):
    with pytest.raises(UserError) as error:
        LLM("demo", **options)
    assert str(error.value) == message
