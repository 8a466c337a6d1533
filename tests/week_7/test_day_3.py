"""Week 7, day 3, optional: context compaction in rare, large steps."""

import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support import assert_equal
from tests.week_7.support import assert_complete, assert_messages, conversation
from tiny_llm.agent import Compaction, Message
from tiny_llm.agent.compaction import DROPPED_NOTE, drop_turns, num_chars, old_results

HEAD = 2  # messages before the first turn of `conversation`
NOTE: Message = {"role": "user", "content": DROPPED_NOTE}


@pytest.mark.parametrize(
    ("turns", "calls", "keep", "expected"),
    [
        (4, 1, 1, [3, 5, 7]),
        (4, 1, 2, [3, 5]),
        (3, 2, 2, [3, 4]),
        (3, 2, 1, [3, 4, 6, 7]),
        (2, 1, 2, []),
        (1, 1, 2, []),
        (0, 1, 1, []),
    ],
)
def test_task_1_tool_results_before_the_last_turns(turns, calls, keep, expected):
    actual = old_results(conversation([30] * turns, calls), keep)
    assert_equal(actual, expected, f"{turns} turns with {calls} results, the last {keep} kept")


def test_task_1_turn_without_calls_counts():
    messages = conversation([30, 30])
    messages.append({"role": "assistant", "content": "In 1.0.txt."})
    messages.append({"role": "user", "content": "Are you sure?"})
    assert_equal(old_results(messages, 1), [3, 5], "the results before the answer, [3, 5]")


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_task_2_nothing_to_drop(turns):
    messages = conversation([100] * turns)
    assert_messages(drop_turns(messages, num_chars(messages), 2), messages, "short conversation")
    if turns in (1, 2):  # kept at any length
        assert_messages(drop_turns(messages, 10, 2), messages, "only the last turns")


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("dropped", [1, 2, 5])
def test_task_2_as_few_turns_as_possible(calls, dropped):
    messages = conversation([200] * 8, calls)

    expected = [*messages[:HEAD], NOTE, *messages[HEAD + dropped * (calls + 1) :]]
    actual = drop_turns(messages, num_chars(expected), 2)
    assert_messages(actual, expected, f"{dropped} of 8 turns dropped")
    assert_complete(actual)


def test_task_2_note_counts_towards_the_target():
    messages = conversation([200] * 8)

    too_long = [*messages[:HEAD], NOTE, *messages[HEAD + 2 :]]
    actual = drop_turns(messages, num_chars(too_long) - 1, 2)
    expected = [*messages[:HEAD], NOTE, *messages[HEAD + 4 :]]
    assert_messages(actual, expected, "one turn fits only without the note")


def test_task_2_kept_turns_above_the_target():
    messages = conversation([200] * 8)
    actual = drop_turns(messages, 10, 3)
    assert_messages(actual[-6:], messages[-6:], "last three turns")
    count = len(actual)
    assert count == HEAD + 1 + 6, f"expected head, note and three turns, got {count} messages"
    before: list[Any] = copy.deepcopy(messages)
    drop_turns(messages, 10, 1)
    assert_messages(messages, before, "caller's messages")


def test_task_2_one_note_after_several_compactions():
    messages = conversation([200] * 8)
    once = drop_turns(messages, num_chars(messages) - 400, 2)
    twice = drop_turns(once, num_chars(once) - 400, 2)
    notes = [message for message in twice if message["content"] == DROPPED_NOTE]
    assert len(notes) == 1, f"expected one note, got {len(notes)}"
    assert_messages(twice[: HEAD + 1], once[: HEAD + 1], "head after a second compaction")
    assert_complete(twice)


def result_lengths(messages: Sequence[Message]) -> list[int]:
    return [len(message["content"]) for message in messages if message["role"] == "tool"]


def test_task_3_limits_and_recent_turns():
    messages = conversation([500] * 6)
    actual = Compaction(limit=num_chars(messages), target=100)(messages)
    assert_messages(actual, messages, "conversation of exactly the limit")
    actual = Compaction(limit=1000, target=200, keep_turns=3)(conversation([600] * 4))
    assert_equal(result_lengths(actual)[-3:], [600] * 3, "the last three results unchanged")
    assert_complete(actual)


def test_task_3_oldest_results_are_shortened_to_the_target():
    messages = conversation([600] * 6)
    before = copy.deepcopy(messages)
    limit = num_chars(messages) - 1
    actual = Compaction(limit, target=limit - 1400)(messages)
    lengths = result_lengths(actual)
    assert lengths[3:] == [600] * 3, f"expected the last three results unchanged, got {lengths}"
    assert max(lengths[:3]) <= 100, f"expected the first three shortened to 100, got {lengths}"
    others = [index for index in range(len(messages)) if index not in (3, 5, 7)]
    assert_messages([actual[i] for i in others], [before[i] for i in others], "other messages")
    assert_messages(messages, before, "caller's messages")
    assert_complete(actual)


def test_task_3_turns_are_dropped_if_shortening_is_not_enough():
    messages = conversation([300] * 20)
    target = 2500
    actual = Compaction(limit=4000, target=target)(messages)
    assert num_chars(actual) <= target, f"expected at most {target}, got {num_chars(actual)}"
    assert_messages(actual[:HEAD], messages[:HEAD], "head")
    assert_complete(actual)


def test_task_3_rare_steps_keep_the_prefix():
    """Measures the prefix that each of 60 prompts shares with the previous one."""
    compaction = Compaction(limit=9000, target=4500)
    turns = conversation([400] * 60)
    context, last, reused, total, changes = turns[:HEAD], "", 0, 0, 0
    for start in range(HEAD, len(turns), 2):
        context = compaction(context)
        prompt = json.dumps(context)[:-1]
        pairs = enumerate(zip(last, prompt, strict=False))
        common = next((i for i, (a, b) in pairs if a != b), min(len(last), len(prompt)))
        changes += common < len(last)
        reused, total, last = reused + common, total + len(prompt), prompt
        context += turns[start : start + 2]
    assert changes <= 8, f"expected at most 8 of 60 prompts not to extend the last, got {changes}"
    rate = reused / total
    assert rate >= 0.8, f"expected at least 80% of the characters to be reused, got {rate:.0%}"
