"""Batch invariance: bitwise equal tokens and logits in any configuration.

Configurations combine batch composition, chunk size, arrival order, page size, prefix caching,
preemption, speculative decoding, 8-bit pages and activations, and adapters.
"""

import itertools

import pytest

from tests.engine.hybrid import build
from tests.engine.support import LORAS, MORE_CASES, assert_same_outputs, run_alone, run_cases
from tiny_llm import LLM, kernels, load

TIGHT_TOKENS, AMPLE_TOKENS = 96, 2048
KINDS = {
    "plain": {},
    "int8 pages": {"kv_cache_dtype": "int8"},
    "8-bit activations": {"activation_bits": 8},
    "adapters": {},  # `lora_modules`, by the fixture
}


@pytest.fixture(scope="module")
def draft():
    return load("demo-draft")


@pytest.fixture(scope="module")
def kind(request, demo, adapters):
    """Options, adapters by case, and the reference: each request alone, with its adapter alone."""
    if request.param == "8-bit activations" and not kernels.prepack_rows():
        pytest.skip("needs CPU kernels with vector instructions")
    options, loras = KINDS[request.param], LORAS if request.param == "adapters" else {}

    def make_llm(case: int) -> LLM:
        module = {name: adapters[name] for name in [loras.get(case)] if name}
        alone = {"max_num_seqs": 1, "enable_prefix_caching": False, "lora_modules": module or None}
        return build(demo, AMPLE_TOKENS, 0, **alone, **options)

    reference = run_alone(make_llm, MORE_CASES, loras)
    return options | ({"lora_modules": adapters} if loras else {}), loras, reference


def serve(llm, kind, direction=1, gap=0, context=""):
    """Serves `MORE_CASES` and compares the results with the reference; returns both's outputs."""
    _, loras, reference = kind
    order = range(len(MORE_CASES))[::direction]
    actual, logits = run_cases(llm, order, gap, MORE_CASES, loras)
    assert_same_outputs(actual, logits, reference, context)
    return actual, logits


@pytest.mark.parametrize("kind", ["adapters"], indirect=True)
def test_one_batch(demo, kind):
    serve(build(demo, AMPLE_TOKENS, 0, max_num_seqs=8, **kind[0]), kind)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "stride"), [("plain", 1), ("int8 pages", 4), ("adapters", 5)], indirect=["kind"]
)
def test_all_configurations(demo, draft, kind, stride, exhaustive):
    cases = PRODUCT if exhaustive and stride == 1 else HALF[::stride]
    hits = preemptions = accepted = 0
    for case in cases:
        guess = case["guess"]
        llm = build(
            demo,
            case["tokens"],
            0,
            draft_model=draft if guess else None,
            block_size=case["page"],
            max_num_seqs=4,
            num_drafts=2 if guess else None,
            max_num_batched_tokens=4 * (3 if guess else 1) + case["chunk"],
            enable_prefix_caching=case["prefix"],
            **kind[0],
        )
        actual, logits = serve(llm, kind, *case["arrival"], f"with {case}")
        # Verified draft tokens beyond an output's end add entries to `logits`.
        assert guess or logits.keys() == kind[2][1].keys()
        hits += sum(output.num_cached_tokens for output in actual.values())
        preemptions += llm.scheduler.num_preemptions
        accepted += llm.runner.statistics.num_accepted_tokens
    # The cases include prefix cache hits, preemptions and accepted draft tokens.
    assert min(hits, preemptions, accepted) > 0
    if stride == 1:
        assert hits / len(cases) > 500 / len(PRODUCT)
        assert preemptions / len(cases) > 20 / len(PRODUCT)
        assert accepted / len(cases) > 200 / len(PRODUCT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "tokens", "chunk", "arrival"),
    [
        *((name, TIGHT_TOKENS, 3, (1, 0)) for name in KINDS),
        ("plain", TIGHT_TOKENS, 200, (-1, 2)),
        ("plain", AMPLE_TOKENS, 3, (1, 0)),
        ("plain", AMPLE_TOKENS, 200, (-1, 2)),
    ],
    indirect=["kind"],
)
def test_with_ngram_proposer(demo, kind, tokens, chunk, arrival):
    options = {"block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 32 + chunk}
    llm = build(demo, tokens, 0, speculative="ngram", **options, **kind[0])
    serve(llm, kind, *arrival)
    assert llm.runner.statistics.num_accepted_tokens > (0 if kind[1] else 20)
    assert tokens == AMPLE_TOKENS or llm.scheduler.num_preemptions > 0
