"""The Messages API, tested with Anthropic's client."""

import asyncio
import json
from types import SimpleNamespace

import anthropic
import pytest

from tests.server.protocols import MESSAGES
from tiny_llm.server.anthropic.messages import MessageSerializer
from tiny_llm.server.anthropic.messages_schema import CountTokensRequest, MessagesRequest
from tiny_llm.server.models.requests import Generation, ParsedOutput
from tiny_llm.server.protocol.prompts import ChatPrompt, PromptRenderer

BODY = {
    "model": "demo",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}
TOOL = {"name": "weather", "description": "The weather.", "input_schema": {"type": "object"}}


def test_message_start_has_cached_tokens(claude):
    content = "Which of these words is the longest? " + " ".join(map(str, range(40)))
    body = {**BODY, "max_tokens": 4, "messages": [{"role": "user", "content": content}]}
    actual = []
    for _ in range(2):
        with claude.messages.stream(**body) as stream:
            usage = next(event.message.usage for event in stream if event.type == "message_start")
            last = stream.get_final_message().usage
        assert usage.cache_read_input_tokens == last.cache_read_input_tokens
        assert usage.input_tokens == last.input_tokens
        actual.append(usage.cache_read_input_tokens)
    assert actual[0] < actual[1]


def test_stream_blocks(claude):
    body = {**BODY, "max_tokens": 1500, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    full = claude.messages.create(**body)
    events = list(claude.messages.create(**body, stream=True))
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start"
    assert events[0].message.usage.input_tokens > 0
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert events[-2].delta.stop_reason == "end_turn"
    blocks, open_blocks = [], []
    for event in events:
        if event.type == "content_block_start":
            assert not open_blocks
            open_blocks.append(event.index)
            blocks.append([event.content_block.type, ""])
        elif event.type == "content_block_delta":
            assert open_blocks == [event.index]
            if event.delta.type == "signature_delta":
                assert (event.delta.signature, event.index) == ("tiny-llm", 0)
            else:
                kind = event.delta.type.removesuffix("_delta")
                blocks[-1][1] += getattr(event.delta, kind)
        elif event.type == "content_block_stop":
            assert open_blocks.pop() == event.index
    assert not open_blocks
    assert any(
        e.type == "content_block_delta" and e.delta.type == "signature_delta" for e in events
    )
    thinking, text = full.content
    assert blocks == [["thinking", thinking.thinking], ["text", text.text]]


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_budget_and_display(server, stream):
    def ask(**thinking):
        thinking = {"type": "enabled", **thinking}
        return MESSAGES.ask(server, max_tokens=100, thinking=thinking, stream=stream).raw

    with_budget = ask(budget_tokens=4)
    assert with_budget.content[-1].type == "text"
    # At most four reasoning tokens plus <think> and </think>; the newline after </think> does not
    # count.
    assert with_budget.usage.output_tokens_details.thinking_tokens <= 4 + 2
    unlimited = ask(budget_tokens=1024)
    omitted = ask(budget_tokens=1024, display="omitted")
    assert [block.type for block in omitted.content] == ["thinking", "text"]
    assert unlimited.content[0].signature == "tiny-llm"
    assert omitted.content[0].thinking == ""
    # The signature has the omitted text, which the next prompt then contains.
    for content in (unlimited.content, omitted.content):
        turn = {"role": "assistant", "content": [block.to_dict() for block in content]}
        request = MessagesRequest(messages=[*BODY["messages"], turn], max_tokens=1)
        message = request.to_template_messages()[-1]
        assert message["reasoning_content"] == unlimited.content[0].thinking
    assert omitted.content[1].text == unlimited.content[1].text
    assert omitted.usage.output_tokens == unlimited.usage.output_tokens


@pytest.mark.parametrize("thinking", [{"type": "disabled"}, {"type": "adaptive"}])
def test_prefill_only(claude, thinking):
    """`max_tokens: 0` fills the prefix cache and returns nothing."""
    question = f"{thinking} Which of these words is the longest? " + " ".join(map(str, range(90)))
    body = {**BODY, "messages": [{"role": "user", "content": question}], "thinking": thinking}
    empty = claude.messages.create(**{**body, "max_tokens": 0})
    assert (empty.content, empty.stop_reason, empty.usage.output_tokens) == ([], "max_tokens", 0)
    assert claude.messages.create(**body).usage.cache_read_input_tokens >= 64
    with claude.messages.stream(**{**body, "max_tokens": 0}) as stream:
        assert [event.type for event in stream] == [
            "message_start",
            "message_delta",
            "message_stop",
        ]
        streamed = stream.get_final_message()
    assert (streamed.content, streamed.usage.output_tokens) == ([], 0)


@pytest.mark.parametrize("signature", ["EqQBCgIYAhIM of another server", "tiny-llm", None])
def test_signatures_of_other_servers(signature):
    block = {"type": "thinking", "thinking": "", "signature": signature}
    turn = {"role": "assistant", "content": [block, {"type": "text", "text": "Hi"}]}
    [message] = MessagesRequest(messages=[turn], max_tokens=1).to_template_messages()
    assert (message["content"], message["reasoning_content"]) == ("Hi", "")


@pytest.mark.parametrize(("more", "text"), [({}, ""), ({"is_error": True}, "Error: ")])
def test_tool_error_is_in_the_prompt(more, text):
    result = {"type": "tool_result", "tool_use_id": "t", "content": "no such city", **more}
    request = MessagesRequest(messages=[{"role": "user", "content": [result]}], max_tokens=1)
    assert request.to_template_messages()[0]["content"] == f"{text}no such city"


def test_async_client(server):
    async def ask():
        client = anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0)
        async with client.messages.stream(**BODY) as stream:
            return "".join([text async for text in stream.text_stream])

    assert asyncio.run(ask()) == "The capital of France is Paris."


def test_deferred_tools_are_in_the_result_that_references_them():
    deferred = {**TOOL, "name": "fetch", "defer_loading": True}
    references = [{"type": "tool_reference", "tool_name": name} for name in ("fetch", "other")]
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": references}
    body = CountTokensRequest(
        messages=[*BODY["messages"], {"role": "user", "content": [result]}], tools=[TOOL, deferred]
    )
    assert [tool["function"]["name"] for tool in body.prompt_tools] == ["weather"]
    definition = body.usable_tools[1]
    assert definition["function"]["name"] == "fetch"
    text = body.to_template_messages()[-1]["content"]
    assert [json.loads(line) for line in text.splitlines()] == [definition, "other"]


def test_only_the_billing_header_is_removed():
    line = "x-anthropic-billing-header: cc_version=1; abc"
    block = {"type": "text", "text": line}
    blocks = [block, {**block, "text": f"{line}\nBe kind."}]
    messages = [
        *BODY["messages"],
        *({"role": "system", "content": text} for text in (f"{line}\nBe kind.", blocks, line)),
    ]
    for system in (f"{line}\nBe kind.", blocks):
        body = CountTokensRequest(system=system, messages=messages).to_template_messages()
        texts = [message["content"] for message in body if message["role"] == "system"]
        assert texts == ["Be kind."] * 3


def test_tool_runner_of_the_sdk(claude):
    @anthropic.beta_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"{city}: sunny"

    runner = claude.beta.messages.tool_runner(**BODY, tools=[weather])
    assert [message.stop_reason for message in runner] == ["end_turn"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [('{"city": "Oslo"}', {"city": "Oslo"}), ('"hello"', {"arguments": '"hello"'}), ("{}", {})],
)
def test_tool_input_is_always_an_object(arguments, expected):
    """Without a grammar, the model may generate non-object arguments."""
    call = f'<tool_call>\n{{"name": "f", "arguments": {arguments}}}\n</tool_call>'
    outputs = [output(call[:30]), output(call[30:]), output("\n" + call), output("", "stop")]
    full = serializer(is_stream=False)
    for item in outputs:
        for part in full._output.add(item):
            full._add(part)
    assert [block["input"] for block in full._blocks] == [expected] * 2
    streamed = serializer(is_stream=True)
    text = b"".join(map(streamed.delta_events, outputs)) + streamed.end_events()
    events = [json.loads(line[6:]) for line in text.decode().split("\n") if line[:5] == "data:"]
    for index in (0, 1):
        deltas = [
            item["delta"] for item in events if item.get("index") == index and "delta" in item
        ]
        assert json.loads("".join(item["partial_json"] for item in deltas)) == expected
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def serializer(is_stream):
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}], "stream": is_stream}
    body["tools"] = [{"name": "f", "input_schema": {"type": "object"}}]
    body = MessagesRequest.model_validate(body)
    prompts = PromptRenderer(SimpleNamespace(chat_template="<tool_call>"))
    prompt = ChatPrompt([1], False, False)
    parser = prompts.output_parser(prompt, body.usable_tools, None, is_stream)
    stream = SimpleNamespace(prompt_tokens=1, cached_tokens=0, model_name="demo")
    generation = Generation(None, prompt, None, stream, [ParsedOutput(parser)])
    return MessageSerializer(body, generation)


def output(text, finish_reason=None):
    return SimpleNamespace(
        text=text, token_ids=(1,), finish_reason=finish_reason, stop_reason=None, index=0
    )
