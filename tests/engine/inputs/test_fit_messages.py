"""Conversations fitted to templates that reject some sequences."""

import random
from dataclasses import fields, replace

import pytest

from tests.engine.inputs.conversations import conversation, describe, markers
from tiny_llm.engine.inputs.fit_messages import TemplateTraits, fit_messages

FLAGS = [field.name for field in fields(TemplateTraits) if field.type is bool]


def traits_without(*names: str) -> TemplateTraits:
    return replace(TemplateTraits(), **dict.fromkeys(names, False))


@pytest.mark.parametrize(
    ("rejected", "words", "expected"),
    [
        ("second_system", "s s u", "system:s0+s1 user:u2"),
        ("second_system", "s u s u", "system:s0 user:u1 system:s2 user:u3"),
        ("late_system", "s s u s", "system:s0 system:s1 user:u2 user:s3"),
        ("late_system consecutive_users", "u a s u", "user:u0 assistant:a1 user:s2+u3"),
        ("late_system user_after_tool", "u ct s", "user:u0 assistant:x10 tool:t2+s3"),
        ("system", "s u", "user:s0 user:u1"),
        ("system consecutive_users", "s s u a", "user:s0+s1+u2 assistant:a3"),
        ("consecutive_users", "u u a u", "user:u0+u1 assistant:a2 user:u3"),
        ("consecutive_assistants", "u a m t", "user:u0 assistant:a1+m2,x20 tool:t3"),
        ("user_after_tool", "u p tt u", "user:u0 assistant:x10,x11 tool:t2 tool:t3+u4"),
        ("assistant_first", "s a u", "system:s0 user: assistant:a1 user:u2"),
        ("no_user", "s a", "system:s0 user: assistant:a1"),
        ("no_user", "a u", "assistant:a0 user:u1"),
        ("no_user", "s s", "system:s0 user:s1"),
        ("empty_assistant", "u e u", "user:u0 assistant:  user:u2"),
        ("text_with_calls", "u m t", "user:u0 assistant:m1 assistant:x10 tool:t2"),
        ("text_with_calls consecutive_assistants", "u m t", "user:u0 assistant:m1,x10 tool:t2"),
        ("parallel_calls", "u p tt a", "user:u0 assistant:x10 tool:t2 assistant:x11 tool:t3 "
         "assistant:a4"),
        ("parallel_calls", "u p", "user:u0 assistant:x10 assistant:x11"),
    ],
)  # fmt: skip
def test_rejected_sequences_are_changed(rejected, words, expected):
    fitted = fit_messages(conversation(words), traits_without(*rejected.split()))
    assert describe(fitted) == expected


def test_results_follow_their_calls_in_any_order():
    messages = conversation("u p tt")
    messages[2:] = [*reversed(messages[2:]), {"role": "tool", "content": "of no call"}]
    fitted = fit_messages(messages, traits_without("parallel_calls"))
    assert describe(fitted) == (
        "user:u0 assistant:x10 tool:t2 assistant:x11 tool:t3 tool:of no call"
    )


def test_merged_messages_keep_reasoning_and_calls():
    first = {"role": "assistant", "content": "a", "reasoning_content": "r"}
    second = {**conversation("m")[0], "reasoning_content": "s"}
    [merged] = fit_messages([first, second], traits_without("consecutive_assistants"))
    assert merged["reasoning_content"] == "r\n\ns"
    assert merged["content"] == "a\n\nm0"
    assert merged["tool_calls"] == second["tool_calls"]


def test_calls_get_the_accepted_form():
    [message] = fit_messages(
        conversation("c"), TemplateTraits(null_content=True, text_arguments=True)
    )
    assert message["content"] is None
    assert message["tool_calls"][0]["function"]["arguments"] == '{"x": "x00"}'


def random_conversation(rng: random.Random) -> list[dict]:
    """Draws turns as agents send them; messages of a turn may repeat."""
    turns = ["a", "e", "aa", "mt", "ct", "ptt", "mts", "ctu", "ctct"]
    words = rng.choice(["", "s", "ss"]) + rng.choice(["u", "uu", "us", "u"])
    for _ in range(rng.randrange(5)):
        words += rng.choice(turns) + rng.choice(["", "u", "uu", "s", "us", "su"])
    return conversation(words)


def test_fitting_keeps_texts_in_order_and_prefixes():
    for seed in range(300):
        check_fitting(random.Random(seed))


def check_fitting(rng: random.Random) -> None:
    traits = traits_without(*(name for name in FLAGS if rng.random() < 0.5))
    messages = random_conversation(rng)
    fitted = fit_messages(messages, traits)
    joined = " ".join(markers(fitted))
    positions = [joined.find(marker) for marker in markers(messages)]
    assert min(positions) >= 0, messages
    if traits.parallel_calls:
        assert positions == sorted(positions)
    # A later turn, which starts with the assistant's message, does not change earlier messages.
    for length in range(1, len(messages)):
        starts_turn = messages[length]["role"] == "assistant"
        if starts_turn and messages[length - 1]["role"] != "assistant":
            prefix = fit_messages(messages[:length], traits)
            assert fitted[: len(prefix)] == prefix, messages


def test_accepted_messages_are_unchanged():
    for seed in range(50):
        messages = random_conversation(random.Random(seed))
        fitted = fit_messages(messages, TemplateTraits())
        assert len(fitted) == len(messages)
        assert all(map(lambda ours, given: ours is given, fitted, messages)), seed
