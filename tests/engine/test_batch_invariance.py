"""Batch invariance: bitwise equal tokens and logits in any configuration.

Configurations combine batch composition, chunk size, arrival order, page size, prefix caching,
preemption and speculative decoding.
"""

import itertools

import pytest

from tests.engine.support import MORE_CASES, assert_same_outputs, run_alone, run_cases
from tiny_llm import LLM, Qwen3ModelWeek2, load, make_sampler
from tiny_llm.generate import decode_with_cache

TIGHT_TOKENS, AMPLE_TOKENS = 96, 2048


def build(demo, tokens: int, draft=None, **options) -> LLM:
    """Builds an engine with KV memory for `tokens` tokens."""
    models = [demo[0]] + ([draft[0]] if draft else [])
    per_token = sum(
        2 * m.args.num_hidden_layers * m.args.num_key_value_heads * m.args.head_dim * 2
        for m in models
    )
    return LLM(demo, draft_model=draft, kv_cache_bytes=tokens * per_token, **options)


def build_case(demo, draft, case, build=build, **options) -> LLM:
    """Builds the engine of a case of `PRODUCT`; speculative cases use `draft`."""
    return build(
        demo,
        case["tokens"],
        draft if case["guess"] else None,
        block_size=case["page"],
        max_num_seqs=4,
        num_drafts=2 if case["guess"] else None,
        max_num_batched_tokens=4 * (3 if case["guess"] else 1) + case["chunk"],
        enable_prefix_caching=case["prefix"],
        **options,
    )


@pytest.fixture(scope="module")
def draft():
    return load("demo-draft")


@pytest.fixture(scope="module")
def reference(demo):
    """Reference outputs and logits: each request alone, prefilled in one chunk."""
    options = {"max_num_seqs": 1, "enable_prefix_caching": False}
    return run_alone(lambda case: build(demo, AMPLE_TOKENS, **options), MORE_CASES)


@pytest.mark.slow
def test_greedy_matches_week_2(demo, reference):
    model = Qwen3ModelWeek2(demo[0])
    output = reference[0][0]
    tokens = decode_with_cache(model, output.prompt_token_ids, make_sampler(0))
    assert output.token_ids == list(itertools.islice(tokens, len(output.token_ids)))


PRODUCT = [
    dict(zip(("chunk", "page", "prefix", "tokens", "arrival", "guess"), values, strict=True))
    for values in itertools.product(
        (3, 200),
        (4, 32),
        (True, False),
        (TIGHT_TOKENS, AMPLE_TOKENS),
        # Requests in order, all at once; requests in reverse order, two steps apart.
        ((1, 0), (-1, 2)),
        (False, True),
    )
]
# This half contains every pair of values of any two parameters.
HALF = [case for number, case in enumerate(PRODUCT) if number.bit_count() % 2]


def run_configurations(cases, make_llm, reference, loras=None) -> tuple[int, int, int]:
    """Runs `MORE_CASES` on engines `make_llm(case)`, for cases of `PRODUCT`.

    Returns the numbers of prefix cache hits, preemptions and accepted draft tokens.
    """
    hits = preemptions = accepted = 0
    for case in cases:
        llm = make_llm(case)
        direction, gap = case["arrival"]
        order = range(len(MORE_CASES))[::direction]
        actual, logits = run_cases(llm, order, gap, MORE_CASES, loras)
        assert_same_outputs(actual, logits, reference, f"with {case}")
        # Verified draft tokens beyond an output's end add entries to `logits`.
        assert case["guess"] or logits.keys() == reference[1].keys()
        hits += sum(output.num_cached_tokens for output in actual.values())
        preemptions += llm.scheduler.num_preemptions
        accepted += llm.runner.statistics.num_accepted_tokens
    return hits, preemptions, accepted


@pytest.mark.slow
def test_all_configurations(demo, draft, reference, exhaustive):
    cases = PRODUCT if exhaustive else HALF
    hits, preemptions, accepted = run_configurations(
        cases, lambda case: build_case(demo, draft, case), reference
    )
    # The cases include prefix cache hits, preemptions and accepted draft tokens.
    assert hits / len(cases) > 500 / len(PRODUCT)
    assert preemptions / len(cases) > 20 / len(PRODUCT)
    assert accepted / len(cases) > 200 / len(PRODUCT)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [TIGHT_TOKENS, AMPLE_TOKENS])
@pytest.mark.parametrize(("chunk", "direction", "gap"), [(3, 1, 0), (200, -1, 2)])
def test_with_ngram_proposer(demo, reference, tokens, chunk, direction, gap):
    options = {"block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 32 + chunk}
    llm = build(demo, tokens, speculative="ngram", **options)
    order = range(len(MORE_CASES))[::direction]
    assert_same_outputs(*run_cases(llm, order, gap, MORE_CASES), reference)
    assert llm.runner.statistics.num_accepted_tokens > 20
    assert tokens == AMPLE_TOKENS or llm.scheduler.num_preemptions > 0
