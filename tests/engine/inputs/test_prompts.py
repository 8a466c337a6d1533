"""Prompts: what is one, and a sentence for each that is not, which does not stop the others."""

import mlx.core as mx
import numpy as np
import pytest

from tests.engine.support import chat
from tiny_llm import LLM, SamplingParams, UserError, load_weights

ONE_TOKEN = SamplingParams(temperature=0, max_tokens=1)
QUESTION = {"role": "user", "content": "Why?"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 17, "b": 25}}}

# As Qwen3's: an assistant that called a tool need not have said anything.
TOOLS_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content if m.content is string }}"
    "{% for call in m.tool_calls %}{{ call.function | tojson }}{% endfor %}. {% endfor %}"
)


@pytest.fixture(scope="module")
def llm():
    return LLM("demo", kv_cache_bytes=2**22)


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([{"role": "user"}], "message 0 of the chat has the content None; give a text"),
        ([QUESTION, {"role": "user", "content": 5}], "message 1 of the chat has the content 5;"),
        (
            [{"role": "user", "content": [{"type": "audio", "text": "Why?"}]}],
            "message 0 of the chat has a content part of type 'audio'; the model reads text only",
        ),
        ([QUESTION, 5], 'message 1 of the chat is 5; give {"role": …, "content": …}, the role a'),
        ([{"content": "Why?"}], "message 0 of the chat is {'content': 'Why?'}; give"),
        ([{"role": 5, "content": "Why?"}], "message 0 of the chat is {'role': 5, 'content'"),
        ([{"prompt_token_ids": [1, 2]}], "message 0 of the chat is {'prompt_token_ids': [1, 2]};"),
        (chat("\ud83d"), "message 0 of the chat has '\\ud83d', half of a character; give whole"),
        (
            [QUESTION, {"role": "assistant", "tool_calls": 5}],
            "the chat template refuses the chat: 'int' object is not iterable.",
        ),
    ],
)
def test_a_chat_that_is_none_is_refused_and_the_others_go_on(llm, messages, error):
    outputs = llm.generate(["hello", messages, chat("Why?")], ONE_TOKEN)
    assert [output.finish_reason for output in outputs] == ["length", "error", "length"]
    assert error in outputs[1].error
    assert outputs[1].error.endswith(".")
    assert not llm.has_unfinished_requests
    with pytest.raises(UserError):
        llm.add_request(messages)


def test_a_template_may_take_messages_without_content():
    weights, tokenizer = load_weights("demo")
    tokenizer.chat_template = TOOLS_TEMPLATE
    llm = LLM((weights, tokenizer), kv_cache_bytes=2**22)
    text = 'user: Why?. assistant: {"name": "add", "arguments": {"a": 17, "b": 25}}. tool: 42. '
    for call in ({"tool_calls": [CALL]}, {"tool_calls": [CALL], "content": None}):
        messages = [QUESTION, {"role": "assistant", **call}, {"role": "tool", "content": "42"}]
        [output] = llm.generate(messages, ONE_TOKEN)
        assert output.error is None
        assert tokenizer.decode(output.prompt_token_ids) == text
    [output] = llm.generate([QUESTION, {"role": "assistant", "tool_calls": 5}], ONE_TOKEN)
    assert output.error == "the chat template refuses the chat: 'int' object is not iterable."


def test_half_a_character_is_refused(llm):
    outputs = llm.generate(["a\udc00", "a"], ONE_TOKEN)
    assert outputs[0].error == "the prompt has '\\udc00', half of a character; give whole ones."
    assert outputs[1].finish_reason == "length"


@pytest.mark.parametrize("prompt", [None, 5, b"abc", bytearray(b"abc"), QUESTION, iter("ab")])
def test_invalid_prompt_adds_no_request(llm, prompt):
    with pytest.raises(UserError, match=r"is no prompt; give a text, .*\)\.$"):
        llm.add_request(prompt)
    for prompts in (prompt, ["a", prompt]):
        with pytest.raises(UserError, match="is no prompt; give a text, .*, or a list of such"):
            llm.generate(prompts)
    assert not llm.has_unfinished_requests


@pytest.mark.parametrize("array", [np.array, mx.array, tuple])
def test_arrays_of_token_ids_are_prompts(llm, array):
    for prompts in (array([5, 6]), [array([5, 6])]):
        [output] = llm.generate(prompts, ONE_TOKEN)
        assert (output.prompt, output.prompt_token_ids) == (None, [5, 6])
    llm.add_request(array([5, 6]), ONE_TOKEN)
    [news] = llm.step()
    assert news.request_output.prompt_token_ids == [5, 6]
    assert news.request_output.token_ids == output.token_ids
