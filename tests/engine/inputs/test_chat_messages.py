"""Messages of a chat: parts, tool calls and reasoning in the form that templates read."""

import pytest

from tiny_llm import UserError
from tiny_llm.engine.inputs.chat_messages import normalize_messages, normalize_tools
from tiny_llm.engine.inputs.prompts import ChatOptions, encode_prompt
from tiny_llm.models import load_weights

USER = {"role": "user", "content": "Why?"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}

# As Qwen3's, shorter.
TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool | tojson }}]{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.reasoning_content }}|{{ m.content }}"
    "{% for call in m.tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}. {% endfor %}"
    "{% if style %}{{ style }}{% endif %}"
)


def call(arguments):
    return {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
    }


def rendered(messages, **options):
    _, tokenizer = load_weights("demo")
    tokenizer.chat_template = TEMPLATE
    return tokenizer.decode(encode_prompt(tokenizer, messages, ChatOptions(**options)))


def test_text_parts_become_one_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert normalize_messages([{"role": "user", "content": parts}])[0]["content"] == "a\nb"


def test_arguments_of_calls_become_objects():
    for arguments in ('{"a": 1}', {"a": 1}):
        [message] = normalize_messages([call(arguments)])
        assert message["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert normalize_messages([call("")])[0]["tool_calls"][0]["function"]["arguments"] == {}


def test_the_callers_messages_are_left_alone():
    message = call('{"a": 1}')
    normalize_messages([message])
    assert message == call('{"a": 1}')


def test_the_template_gets_tools_reasoning_and_variables():
    messages = [USER, {**call('{"a": 1}'), "reasoning_content": "hm"}]
    text = rendered(messages, tools=[TOOL], template_kwargs={"style": "short"})
    assert text.startswith('[{"type": "function", "function": {"name": "add"')
    assert text.endswith('assistant: hm|{"a": 1}. short')


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "message 0 of the chat has a content part of type 'image_url'; the model reads text",
        ),
        ({"role": "user", "content": [5]}, "message 0 of the chat has a content part 5; the model"),
        (call("{"), "has a call of 'f' with the arguments '{'; they must be JSON."),
        (call("[" * 100_000), "they must be JSON."),
        ({"role": "assistant", "tool_calls": [5]}, "has the tool call 5; give"),
        (
            {"role": "assistant", "content": "a", "reasoning_content": 5},
            "message 0 of the chat has the reasoning_content 5; give a text.",
        ),
    ],
)
def test_invalid_message_is_refused(message, error):
    with pytest.raises(UserError) as raised:
        normalize_messages([message])
    assert error in str(raised.value)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tools": 5}, "tools is 5; it must be a list of functions."),
        ({"tools": [{"name": "add"}]}, "tool 0 is {'name': 'add'}; give"),
        ({"template_kwargs": {"messages": []}}, "has 'messages', which cannot be set there."),
    ],
)
def test_invalid_chat_options_are_refused(options, error):
    with pytest.raises(UserError) as raised:
        rendered([USER], **options)
    assert error in str(raised.value)


def test_a_template_without_tools_refuses_them():
    _, tokenizer = load_weights("demo")
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(UserError, match="chat template has no place for tools"):
        encode_prompt(tokenizer, [USER], ChatOptions(tools=[TOOL]))
    assert normalize_tools([]) is None
