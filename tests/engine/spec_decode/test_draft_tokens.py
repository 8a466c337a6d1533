"""N-gram proposer: draft tokens, lengths, same outputs as without drafts."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_llm import LLM, SamplingParams
from tiny_llm.engine.spec_decode.draft_tokens import (
    ESTIMATE_WINDOW,
    MAX_MATCH_LENGTH,
    MAX_NGRAM_DRAFT_TOKENS,
    NGRAM_LENGTHS,
    NgramIndex,
)


def naive_draft_tokens(text: list[int], min_probability: float, max_tokens: int) -> list[int]:
    """Oracle for `NgramIndex`: a linear search at every token."""
    trust = {length: 1 - 1 / length for length in range(1, MAX_MATCH_LENGTH + 1)}
    expected, agreed = None, 0
    for end in range(1, len(text) + 1):
        if expected is not None:
            is_right = text[expected] == text[end - 1]
            kind = min(agreed, MAX_MATCH_LENGTH)
            trust[kind] += (is_right - trust[kind]) / ESTIMATE_WINDOW
            expected, agreed = (expected + 1, agreed + 1) if is_right else (None, 0)
        for length in NGRAM_LENGTHS:
            if expected is None:
                tail = text[end - length : end] if end >= length else None
                matches = [p for p in range(length, end) if text[p - length : p] == tail]
                expected, agreed = (matches[-1], length) if matches else (None, 0)
    if expected is None:
        return []
    draft_tokens, likely = [], 1.0
    while len(draft_tokens) < max_tokens:
        likely *= trust[min(agreed + len(draft_tokens), MAX_MATCH_LENGTH)]
        if likely < min_probability:
            break
        draft_tokens.append([*text, *draft_tokens][expected + len(draft_tokens)])
    return draft_tokens


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.integers(0, 3) | st.integers(2**18, 2**18 + 1), max_size=60),
    st.lists(st.integers(1, 9), max_size=8),
    st.sampled_from([0.05, 0.3, 0.7]),
)
def test_draft_tokens_match_a_linear_search(text, steps, min_probability):
    """Covers several tokens added between calls."""
    token_ids: list[int] = []
    index = NgramIndex(token_ids)
    for count in [*steps, len(text)]:
        token_ids += text[len(token_ids) : len(token_ids) + count]
        assert index.draft_tokens(min_probability) == naive_draft_tokens(
            token_ids, min_probability, MAX_NGRAM_DRAFT_TOKENS
        )


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
