"""The Messages API, tested with Anthropic's client."""

import json
from types import SimpleNamespace

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
    text = "Which of these words is the longest? " + " ".join(map(str, range(40)))
    body = {**BODY, "max_tokens": 4, "messages": [{"role": "user", "content": text}]}
    cached = []
    for _ in range(2):
        with claude.messages.stream(**body) as stream:
            first = next(event.message.usage for event in stream if event.type == "message_start")
            last = stream.get_final_message().usage
        cached.append(first.cache_read_input_tokens)
        assert (cached[-1], first.input_tokens) == (last.cache_read_input_tokens, last.input_tokens)
    assert cached[0] < cached[1]


def test_stream_blocks(claude):
    body = {**BODY, "max_tokens": 1500, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    full = claude.messages.create(**body)
    first, *events, delta, stop = claude.messages.create(**body, stream=True)
    assert (first.type, delta.type, stop.type) == (
        *("message_start", "message_delta", "message_stop"),
    )
    assert first.message.usage.input_tokens > 0
    assert delta.delta.stop_reason == "end_turn"
    blocks, open_blocks, signatures = [], [], []
    for event in events:
        if event.type == "content_block_start":
            assert not open_blocks
            open_blocks.append(event.index)
            blocks.append([event.content_block.type, ""])
        elif event.type == "content_block_delta":
            assert open_blocks == [event.index]
            if event.delta.type == "signature_delta":
                signatures.append((event.delta.signature, event.index))
            else:
                blocks[-1][1] += getattr(event.delta, event.delta.type.removesuffix("_delta"))
        elif event.type == "content_block_stop":
            assert open_blocks.pop() == event.index
    assert not open_blocks
    assert signatures == [("tiny-llm", 0)]
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
        kinds = [event.type for event in stream]
        assert kinds == ["message_start", "message_delta", "message_stop"]
        streamed = stream.get_final_message()
    assert (streamed.content, streamed.usage.output_tokens) == ([], 0)


@pytest.mark.parametrize("signature", ["EqQBCgIYAhIM of another server", "tiny-llm", None])
def test_signatures_of_other_servers(signature):
    block = {"type": "thinking", "thinking": "", "signature": signature}
    turn = {"role": "assistant", "content": [block, {"type": "text", "text": "Hi"}]}
    [message] = MessagesRequest(messages=[turn], max_tokens=1).to_template_messages()
    assert (message["content"], message["reasoning_content"]) == ("Hi", "")


def test_tool_error_is_in_the_prompt():
    for more, text in (({}, ""), ({"is_error": True}, "Error: ")):
        result = {"type": "tool_result", "tool_use_id": "t", "content": "no such city", **more}
        request = MessagesRequest(messages=[{"role": "user", "content": [result]}], max_tokens=1)
        assert request.to_template_messages()[0]["content"] == f"{text}no such city"


def test_deferred_tools_are_in_the_result_that_references_them():
    deferred = {**TOOL, "name": "fetch", "defer_loading": True}
    references = [{"type": "tool_reference", "tool_name": name} for name in ("fetch", "other")]
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": references}
    messages = [*BODY["messages"], {"role": "user", "content": [result]}]
    body = CountTokensRequest(messages=messages, tools=[TOOL, deferred])
    assert [tool["function"]["name"] for tool in body.prompt_tools] == ["weather"]
    _, definition = body.usable_tools
    assert definition["function"]["name"] == "fetch"
    text = body.to_template_messages()[-1]["content"]
    assert [json.loads(line) for line in text.splitlines()] == [definition, "other"]


def test_only_the_billing_header_is_removed():
    line = "x-anthropic-billing-header: cc_version=1; abc"
    kind = f"{line}\nBe kind."
    blocks = [{"type": "text", "text": text} for text in (line, kind)]
    messages = [{"role": "system", "content": content} for content in (kind, blocks, line)]
    for system in (kind, blocks):
        body = CountTokensRequest(system=system, messages=[*BODY["messages"], *messages])
        texts = [m["content"] for m in body.to_template_messages() if m["role"] == "system"]
        assert texts == ["Be kind."] * 3


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
        deltas = [e["delta"] for e in events if e.get("index") == index and "delta" in e]
        assert json.loads("".join(delta["partial_json"] for delta in deltas)) == expected
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def serializer(is_stream):
    body = MessagesRequest(**BODY, tools=[{**TOOL, "name": "f"}], stream=is_stream)
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
