"""N-gram proposer: draft tokens, lengths, same outputs as without drafts."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_llm import LLM, SamplingParams
from tiny_llm.engine.spec_decode.ngram_proposer import (
    ESTIMATE_WINDOW,
    MAX_MATCH_LENGTH,
    MAX_NGRAM_DRAFT_TOKENS,
    NGRAM_LENGTHS,
    NgramIndex,
)
from tiny_llm.errors import UserError


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


def test_quotes_and_repetitions_are_drafted():
    source = list(range(100, 130))
    assert NgramIndex([*source, 7, 100, 101, 102]).draft_tokens(0.1)[:3] == [103, 104, 105]
    assert NgramIndex([5, 1, 2, 3] * 9 + [5, 1]).draft_tokens(0.1) == [2, 3, 5, 1, 2, 3, 5]
    assert len(NgramIndex([8] * 20).draft_tokens(0.1, max_tokens=3)) == 3


def test_rarely_accepted_matches_are_no_longer_proposed():
    """The text repeats a pair of tokens, always continued differently."""
    text: list[int] = [1, 2, 10, 1, 2]
    index, rng = NgramIndex(text), random.Random(1)
    assert index.draft_tokens(1 / 9) == [10, 1, 2, 10, 1, 2, 10]
    for _ in range(30):
        text += [rng.randrange(100, 1000), 1, 2]
    assert index.draft_tokens(1 / 9) == []


def test_fewer_drafts_under_load():
    text = [*range(100, 130), 7, 100, 101, 102]
    counts = [len(NgramIndex(text).draft_tokens(n / (n + 8))) for n in (1, 4, 16, 200)]
    assert counts == [7, 4, 1, 0]


def test_conflicting_arguments(demo):
    with pytest.raises(UserError, match="speculative='ngram' and draft_model cannot be combined"):
        LLM(demo, speculative="ngram", draft_model="demo-draft")
    with pytest.raises(UserError, match="speculative must be 'ngram', 'mtp' or None, got 'suffix'"):
        LLM(demo, speculative="suffix")
    with pytest.raises(UserError, match="num_drafts=3 requires draft_model or speculative='ngram'"):
        LLM(demo, num_drafts=3)
    with pytest.raises(UserError, match="num_drafts"):
        LLM(demo, num_drafts=0, speculative="ngram")


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
