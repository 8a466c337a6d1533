"""Prompts: accepted types, and invalid prompts in a batch."""

import mlx.core as mx
import numpy as np
import pytest

from tests.engine.inputs.conversations import tokenizer_with
from tests.engine.support import chat, finish
from tiny_llm import LLM, SamplingParams, UserError

ONE_TOKEN = SamplingParams(temperature=0, max_tokens=1)
QUESTION = {"role": "user", "content": "Why?"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 17, "b": 25}}}

# Like Qwen3's, this template allows assistant messages with tool calls and no content.
TOOLS_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content if m.content is string }}"
    "{% for call in m.tool_calls %}{{ call.function | tojson }}{% endfor %}. {% endfor %}"
)


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ("a\udc00", "the prompt contains '\\udc00', an unpaired surrogate; text must be valid Uni"),
        ([{"role": "user"}], "messages[0].content must be a string or a list of text"),
        (
            [QUESTION, {"role": "user", "content": 5}],
            "messages[1].content must be a string or a list of text parts, got 5;",
        ),
        ([QUESTION, 5], 'messages[1] must be {"role": …, "content": …} with a string role, got 5.'),
        ([{"content": "Why?"}], "with a string role, got {'content': 'Why?'}."),
        ([{"role": 5, "content": "Why?"}], "with a string role, got {'role': 5, 'content'"),
        ([{"prompt_token_ids": [1, 2]}], "with a string role, got {'prompt_token_ids': [1"),
        (chat("\ud83d"), "messages[0] contains '\\ud83d', an unpaired surrogate; text"),
    ],
)
def test_invalid_prompts_fail_only_their_own_request(llm, messages, error):
    outputs = llm.generate(["hello", messages, chat("Why?")], ONE_TOKEN)
    assert [output.finish_reason for output in outputs] == ["length", "error", "length"]
    assert error in outputs[1].error
    assert outputs[1].error.endswith(".")
    assert not llm.has_unfinished_requests
    with pytest.raises(UserError):
        llm.add_request(messages)


def test_prompts_of_vllm(llm):
    ids = llm.get_tokenizer().encode("Once upon")
    given = [
        {"prompt": "Once upon"},
        {"prompt_token_ids": ids},
        {"prompt_token_ids": np.array(ids), "prompt": "another text"},
    ]
    outputs = llm.generate(given, ONE_TOKEN, use_tqdm=False)
    for prompt in given:
        outputs += llm.generate(prompt, ONE_TOKEN)
        outputs += [output.request_output for output in llm.stream([prompt], ONE_TOKEN)]
    assert {tuple(output.prompt_token_ids) for output in outputs} == {tuple(ids)}
    assert len({output.outputs[0].text for output in outputs}) == 1
    assert outputs[0].prompt == "Once upon"
    llm.add_request(given[1], ONE_TOKEN)
    finish(llm)
    for wrong in ({"prompt": 5}, {"prompt": "a", "multi_modal_data": {}}, {}):
        with pytest.raises(UserError, match="a prompt must be text, token ids or chat"):
            llm.generate(wrong, ONE_TOKEN)


def test_chat_of_vllm(llm):
    [expected] = llm.generate([QUESTION], ONE_TOKEN)
    assert expected.prompt == [QUESTION]
    [one] = llm.chat([QUESTION], ONE_TOKEN, False)
    [again, other] = llm.chat([[QUESTION], chat("Hi")], ONE_TOKEN, use_tqdm=False)
    assert one.text == again.text == expected.text
    assert other.prompt_token_ids != one.prompt_token_ids == expected.prompt_token_ids
    options = {"chat_template_kwargs": {"enable_thinking": True}, "tools": None}
    [thinking] = llm.chat([QUESTION], ONE_TOKEN, **options)
    assert thinking.prompt_token_ids != expected.prompt_token_ids
    with pytest.raises(UserError, match="messages must be chat messages, got 'Why"):
        llm.chat("Why?", ONE_TOKEN)


def test_assistant_messages_may_omit_content(demo):
    tokenizer = tokenizer_with(TOOLS_TEMPLATE)
    llm = LLM((demo[0], tokenizer), kv_cache_bytes=2**22)
    text = 'user: Why?. assistant: {"name": "add", "arguments": {"a": 17, "b": 25}}. tool: 42. '
    for call in ({"tool_calls": [CALL]}, {"tool_calls": [CALL], "content": None}):
        messages = [QUESTION, {"role": "assistant", **call}, {"role": "tool", "content": "42"}]
        [output] = llm.generate(messages, ONE_TOKEN)
        assert output.error is None
        assert tokenizer.decode(output.prompt_token_ids) == text
    tokenizer.chat_template = "{% for m in 5 %}{% endfor %}"
    [output] = llm.generate([QUESTION], ONE_TOKEN)
    assert output.error == "the chat template failed: 'int' object is not iterable."


@pytest.mark.parametrize(
    "prompt", [None, 5, b"abc", bytearray(b"abc"), QUESTION, iter("ab"), {1, 2}]
)
def test_invalid_prompt_adds_no_request(llm, prompt):
    with pytest.raises(UserError, match=r"^a prompt must be text, token ids .*\), got .*\.$"):
        llm.add_request(prompt)
    for prompts in (prompt, ["a", prompt]):
        with pytest.raises(
            UserError, match=r"^a prompt must be text, .*, or a list of prompts, got .*\.$"
        ):
            llm.generate(prompts)
    assert not llm.has_unfinished_requests


@pytest.mark.parametrize("array", [np.array, mx.array, tuple])
def test_arrays_of_token_ids_are_prompts(llm, array):
    for prompts in (array([5, 6]), [array([5, 6])]):
        [output] = llm.generate(prompts, ONE_TOKEN)
        assert (output.prompt, output.prompt_token_ids) == (None, [5, 6])
    llm.add_request(array([5, 6]), ONE_TOKEN)
    [stream_output] = llm.step()
    assert stream_output.request_output.prompt_token_ids == [5, 6]
    assert stream_output.request_output.token_ids == output.token_ids
