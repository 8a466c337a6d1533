"""Week 5, day 6, optional: verification, acceptance rates and n-gram drafts."""

import random
from collections.abc import Callable, Sequence

import pytest

from tests.support import assert_equal
from tiny_llm.engine.spec_decode.draft_tokens import (
    ESTIMATE_WINDOW,
    FREE_TOKENS_PER_STEP,
    MAX_MATCH_LENGTH,
    NGRAM_LENGTHS,
    AcceptanceRates,
    NgramIndex,
    accepted_tokens,
    break_even_probability,
)

Target = Callable[[Sequence[int]], int]  # token ids so far -> next token id


@pytest.mark.parametrize(
    ("drafts", "sampled", "expected"),
    [
        ([4, 5, 6], [4, 5, 9, 7], [4, 5, 9]),
        ([4, 5, 6], [9, 5, 6, 7], [9]),
        ([4, 5, 6], [4, 9, 6, 7], [4, 9]),
        ([4], [5, 6], [5]),
        ([4, 5, 6], [4, 5, 6, 7], [4, 5, 6, 7]),
    ],
    ids=["last differs", "first differs", "middle differs", "one draft token", "all match"],
)
def test_task_1_longest_matching_prefix_and_one_more(drafts, sampled, expected):
    actual = list(accepted_tokens(drafts, sampled))
    assert_equal(actual, expected, f"draft tokens {drafts}, samples {sampled}")


def decode(target: Target, prompt: list[int], max_tokens: int, draft: Target) -> list[int]:
    """Decodes with three draft tokens per step."""
    text = list(prompt)
    while len(text) < len(prompt) + max_tokens:
        drafts: list[int] = []
        for _ in range(3):
            drafts.append(draft([*text, *drafts]))
        sampled = [target([*text, *drafts[:i]]) for i in range(len(drafts) + 1)]
        tokens = accepted_tokens(drafts, sampled)
        assert tokens, (
            f"draft tokens {drafts}, samples {sampled}: expected at least one token, got none"
        )
        text += tokens
    return text[: len(prompt) + max_tokens]


@pytest.mark.parametrize("period", [1, 2, 3, 5])
def test_task_1_output_equals_the_target(period):
    """Wrong draft tokens at multiples of `period` must not change the output."""

    def target(text: Sequence[int]) -> int:
        return (3 * text[-1] + text[-2] + 1) % 11

    def draft(text: Sequence[int]) -> int:
        return target(text) + (len(text) % period == 0)

    expected = [1, 2]
    while len(expected) < 42:
        expected.append(target(expected))
    actual = decode(target, [1, 2], 40, draft)
    assert actual == expected, f"expected the target model's tokens {expected}, got {actual}"


@pytest.mark.parametrize("num_running", [1, 3, 8, 24, 200])
def test_task_2_break_even(num_running):
    probability = break_even_probability(num_running)
    # Duration of a step. The unit is the time by which one more token lengthens a step.
    seconds = FREE_TOKENS_PER_STEP + num_running
    plain, drafted = num_running / seconds, (num_running + probability) / (seconds + 1)
    hint = f"the throughput with a draft token of probability {probability:.3f} to be unchanged"
    assert_equal(drafted, pytest.approx(plain), hint)


def test_task_2_acceptance_rates_move_toward_outcomes():
    rates = AcceptanceRates()
    assert rates.rate(2) == 0.5
    rates.update(2, True)
    expected = 0.5 + 0.5 / ESTIMATE_WINDOW
    assert_equal(rates.rate(2), pytest.approx(expected), "an eighth of the way from 0.5 to 1")
    rates.update(2, False)
    expected -= expected / ESTIMATE_WINDOW
    assert_equal(rates.rate(2), pytest.approx(expected), "an eighth of the way to 0")
    assert_equal(rates.rate(3), pytest.approx(2 / 3), "unchanged rates of other lengths")


def test_task_2_long_matches_share_a_rate():
    rates = AcceptanceRates()
    before = rates.rate(MAX_MATCH_LENGTH)
    rates.update(MAX_MATCH_LENGTH + 12, False)
    expected = pytest.approx(before * (1 - 1 / ESTIMATE_WINDOW))
    for length in (MAX_MATCH_LENGTH, MAX_MATCH_LENGTH + 12, 500):
        assert_equal(rates.rate(length), expected, f"the rate of length {length}")
    low, expected = rates.rate(MAX_MATCH_LENGTH - 1), 1 - 1 / (MAX_MATCH_LENGTH - 1)
    assert_equal(low, pytest.approx(expected), "unchanged rates of shorter match lengths")


MATCHES = {
    "no repetition": ([1, 2, 3, 4], (-1, 0)),
    "repeated pair": ([1, 2, 3, 9, 1, 2], (2, 2)),
    "correct prediction": ([1, 2, 3, 9, 1, 2, 3], (3, 3)),
    "wrong prediction": ([1, 2, 3, 9, 1, 2, 4], (-1, 0)),
    "last of two occurrences": ([1, 2, 3, 1, 2, 4, 1, 2], (5, 2)),
    "next match": ([1, 2, 3, 9, 1, 2, 4, 9, 1], (5, 2)),
    "no match with itself": ([7, 7], (-1, 0)),
    "overlapping match": ([7, 7, 7], (2, 2)),
}


@pytest.mark.parametrize(("text", "expected"), MATCHES.values(), ids=MATCHES)
def test_task_3_examples(text, expected):
    index = NgramIndex(text)
    index.update()
    actual = index.next_position, index.match_length
    assert_equal(actual, expected, f"the next position and match length {expected} ({text})")
    # Predicts 5, which followed `1 2 3 4`, not 8, which followed a later `3 4`.
    text = [1, 2, 3, 4, 5, 3, 4, 8, 6, 1, 2, 7, 1, 2, 3, 4]
    index = NgramIndex(text)
    index.update()
    assert_equal(text[index.next_position], 5, "the token after 1 2 3 4")


def naive_match(text: Sequence[int]) -> tuple[int, int]:
    """Reference without an index: extends the match or searches for a new one."""
    expected, matched = -1, 0
    for end in range(1, len(text) + 1):
        if expected >= 0:
            agrees = text[expected] == text[end - 1]
            expected, matched = (expected + 1, matched + 1) if agrees else (-1, 0)
        for length in NGRAM_LENGTHS:
            if expected < 0:
                last = text[end - length : end]
                for start in range(end - length):
                    if text[start : start + length] == last:
                        expected, matched = start + length, length
    return expected, matched


@pytest.mark.parametrize("vocabulary", [2, 3, 6])
def test_task_3_equals_naive_search(vocabulary):
    draw = random.Random(vocabulary)
    text: list[int] = []
    index = NgramIndex(text)
    for _ in range(40):
        text += [draw.randrange(vocabulary) for _ in range(draw.randrange(1, 4))]
        index.update()
        actual = index.next_position, index.match_length
        assert_equal(actual, naive_match(text), f"next position and match length of {text}")


def test_task_3_every_prediction_is_counted():
    text = [1, 2, 3, 4, 5, 1, 2, 3, 4, 9]
    index, expected = NgramIndex(text), AcceptanceRates()
    index.update()
    for length, is_accepted in ((2, True), (3, True), (4, False)):
        expected.update(length, is_accepted)
    for length in (2, 3, 4, 5):
        actual, right = index.acceptance.rate(length), pytest.approx(expected.rate(length))
        hint = f"matches of length {length}'s rate in {text}: 3 and 4 were predicted, 9 was not"
        assert_equal(actual, right, hint)


QUOTE = list(range(100, 130))


@pytest.mark.parametrize(
    ("text", "max_tokens", "expected"),
    [
        ([*QUOTE, 7, 100, 101], 4, [102, 103, 104, 105]),
        ([*QUOTE, 7, 100, 101, 102], 1, [103]),
        ([1, 2, 3], 4, []),
        ([1, 2, 9, 1, 2], 7, [9, 1, 2, 9, 1, 2, 9]),
        ([8, 8, 8], 3, [8, 8, 8]),
    ],
    ids=["quotation", "one token", "no match", "continues into the draft", "repeated token"],
)
def test_task_4_draft_follows_the_match(text, max_tokens, expected):
    assert_equal(NgramIndex(text).draft_tokens(0.0, max_tokens), expected, f"after {text}")


@pytest.mark.parametrize(
    ("min_probability", "expected"), [(0.34, 0), (0.33, 1), (0.26, 1), (0.2, 2), (0.16, 3)]
)
def test_task_4_probabilities_are_multiplied(min_probability, expected):
    """A draft token's probability is the product of all rates up to its own."""
    index = NgramIndex([1, 2, 3, 4, 5, 6, 7, 1, 2])
    for _ in range(3):
        index.acceptance.update(2, False)  # 1/2 → 7/16 → 0.383 → 0.335
    actual = len(index.draft_tokens(min_probability))
    hint = f"draft tokens of at least {min_probability}; the first have 0.335, 0.223 and 0.167"
    assert_equal(actual, expected, hint)


def test_task_4_fewer_drafts_under_load():
    text = [*QUOTE, 7, 100, 101, 102]
    counts = [len(NgramIndex(text).draft_tokens(break_even_probability(n))) for n in (1, 4, 16)]
    assert_equal(counts, [7, 4, 1], "draft tokens for 1, 4 and 16 sequences")


def test_task_4_edited_text_takes_few_steps():
    """Most draft tokens are accepted if the output is the prompt with 3 changes."""
    draw = random.Random(0)
    original = [draw.randrange(1000) for _ in range(120)]
    edited = [*original[:40], 2001, *original[41:80], 2002, 2003, *original[82:]]
    prompt = [*original, 3000]
    text, steps = list(prompt), 0
    index = NgramIndex(text)
    while len(text) < len(prompt) + len(edited):
        drafts = index.draft_tokens(break_even_probability(1))
        position = len(text) - len(prompt)
        text += accepted_tokens(drafts, [*edited, *[0] * 9][position : position + len(drafts) + 1])
        steps += 1
        assert len(text) - len(prompt) >= steps, "expected at least one token per step"
    actual = text[len(prompt) :][: len(edited)]
    assert actual == edited, "expected the target model's output"
    assert steps <= 30, f"expected at most 30 steps for 120 tokens, got {steps}"
