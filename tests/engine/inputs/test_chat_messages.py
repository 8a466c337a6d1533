"""Chat message normalization: text parts, tool calls, reasoning."""

import pytest

from tiny_llm import UserError
from tiny_llm.engine.inputs.chat_template import check_messages, normalize_messages, normalize_tools


def normalize(messages):
    return normalize_messages(check_messages(messages))


def call(arguments):
    return {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        *((each, {"a": 1}) for each in ('{"a": 1}', {"a": 1})),
        *((each, {}) for each in ("", " ", None, "null")),
        *((each, {"arguments": each}) for each in ("{", '{"a": 1', '{"value": ', "[" * 90, 5)),
        ("[1]", {"arguments": [1]}),
    ],
)
def test_arguments_become_an_object(arguments, expected):
    [message] = normalize([call(arguments)])
    assert message["tool_calls"][0]["function"]["arguments"] == expected


PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"role": "user", "content": PARTS}, {"role": "user", "content": "a\nb"}),
        ({"role": "developer", "content": "a"}, {"role": "system", "content": "a"}),
        *(
            (
                {"role": "assistant", "content": "a", "tool_calls": calls},
                {"role": "assistant", "content": "a"},
            )
            for calls in (None, [], ())
        ),
    ],
)
def test_normalized_message(fields, expected):
    assert normalize([fields]) == [expected]


@pytest.mark.parametrize("arguments", ["[" * 1000 + "]" * 1000, "[" + "0," * 200_000 + "0]"])
def test_large_arguments_are_rejected(arguments):
    with pytest.raises(UserError, match="^the JSON of the tool calls' arguments "):
        normalize([call(arguments)])


def test_input_is_not_modified():
    message = call('{"a": 1}')
    normalize([message])
    assert message == call('{"a": 1}')


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "got type 'image_url'; the model accepts text only.",
        ),
        ({"role": "user", "content": [5]}, "messages[0].content[0] must be {"),
        ({"role": "assistant", "tool_calls": 5}, "messages[0].tool_calls must be a list, got 5."),
        (
            {"role": "assistant", "tool_calls": [5]},
            'messages[0].tool_calls[0] must be {"function": {"name": …, "arguments": …}}, got 5.',
        ),
        (
            {"role": "assistant", "content": "a", "reasoning_content": 5},
            "messages[0].reasoning_content must be a string, got 5.",
        ),
    ],
)
def test_invalid_message_is_rejected(message, error):
    with pytest.raises(UserError) as raised:
        normalize([message])
    assert error in str(raised.value)


def test_empty_tools_are_none():
    assert normalize_tools([]) is None
