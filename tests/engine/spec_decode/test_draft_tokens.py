"""N-gram proposer in the engine; the tests of day 5.6 cover matches and draft lengths."""

from tiny_llm import LLM, SamplingParams
from tiny_llm.engine.spec_decode.draft_tokens import NgramIndex


def test_large_token_ids_are_distinct():
    assert NgramIndex([2**18, 2**18 + 1, 9, 0, 1]).draft_tokens(0.0) == []


def test_repetitive_output_takes_fewer_steps(demo):
    """With `ignore_eos`, the demo model repeats itself."""
    params = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
    plain, with_ngrams = (
        LLM(demo, kv_cache_bytes=2**24, speculative=speculative) for speculative in (None, "ngram")
    )
    [expected], [actual] = (
        llm.generate(["What is a cat?"], params, use_tqdm=False) for llm in (plain, with_ngrams)
    )
    assert actual.outputs == expected.outputs
    assert with_ngrams.runner.statistics.target_steps < 0.7 * plain.runner.statistics.target_steps
