"""The Messages API, tested with Anthropic's client."""

import asyncio
import json
from types import SimpleNamespace

import anthropic
import httpx2
import pytest

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


def test_message(claude):
    message = claude.messages.create(**BODY)
    (block,) = message.content
    assert block.text == "The capital of France is Paris."
    assert message.stop_reason == "end_turn"
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens > 5
    assert message.usage.output_tokens == 8


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
    assert [block.type for block in full.content] == ["thinking", "text"]
    assert 0 < full.usage.output_tokens_details.thinking_tokens < full.usage.output_tokens
    with claude.messages.stream(**body) as stream:
        events = [event.type for event in stream]
        streamed = stream.get_final_message()
    contents = [[block.to_dict() for block in item.content] for item in (full, streamed)]
    assert [block["type"] for block in contents[1]] == ["thinking", "text"]
    assert contents[0][0] == contents[1][0]
    assert contents[0][1]["text"] == contents[1][1]["text"]
    assert streamed.stop_reason == "end_turn"
    raw = list(claude.messages.create(**body, stream=True))
    kinds = [event.type for event in raw]
    assert kinds[0] == "message_start"
    assert raw[0].message.usage.input_tokens > 0
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert "signature" in events
    open_blocks = []
    for event in raw:
        if event.type == "content_block_start":
            assert not open_blocks
            open_blocks.append(event.index)
        elif event.type == "content_block_delta":
            assert open_blocks == [event.index]
        elif event.type == "content_block_stop":
            assert open_blocks.pop() == event.index
    assert not open_blocks


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_budget_and_display(claude, stream):
    def ask(**thinking):
        body = {**BODY, "thinking": {"type": "enabled", **thinking}}
        if not stream:
            return claude.messages.create(**body)
        with claude.messages.stream(**body) as response:
            return response.get_final_message()

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


@pytest.mark.parametrize("stream", [False, True])
def test_empty_message_has_an_empty_text_block(claude, stream):
    body = {**BODY, "stop_sequences": ["The"]}
    if stream:
        with claude.messages.stream(**body) as response:
            message = response.get_final_message()
    else:
        message = claude.messages.create(**body)
    assert [block.text for block in message.content] == [""]


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


def test_tool_error_is_in_the_prompt():
    def tool_result(**more):
        result = {"type": "tool_result", "tool_use_id": "t", "content": "no such city", **more}
        messages = [{"role": "user", "content": [result]}]
        return MessagesRequest(messages=messages, max_tokens=1).to_template_messages()[0]["content"]

    assert tool_result() == "no such city"
    assert tool_result(is_error=True) == "Error: no such city"


def test_async_client(server):
    async def ask():
        client = anthropic.AsyncAnthropic(base_url=server.url, api_key="none", max_retries=0)
        async with client.messages.stream(**BODY) as stream:
            return "".join([text async for text in stream.text_stream])

    assert asyncio.run(ask()) == "The capital of France is Paris."


def test_stop_sequence_and_max_tokens(claude):
    stopped = claude.messages.create(**BODY, stop_sequences=[" France"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", " France")
    assert stopped.content[0].text == "The capital of"
    truncated = claude.messages.create(**{**BODY, "max_tokens": 2})
    assert truncated.stop_reason == "max_tokens"


def test_count_tokens(claude):
    messages = BODY["messages"]
    short = claude.messages.count_tokens(model="demo", messages=messages).input_tokens
    system = [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]
    long = claude.messages.count_tokens(model="demo", messages=messages, system=system)
    usage = claude.messages.create(**BODY).usage
    assert short == usage.input_tokens + usage.cache_read_input_tokens
    assert long.input_tokens > short
    line = {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; abc"}
    with_line = claude.messages.count_tokens(
        model="demo", messages=messages, system=[line, *system]
    )
    assert with_line.input_tokens == long.input_tokens


def test_tools_and_results_are_in_the_prompt(claude):
    use = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Paris"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
    messages = [
        *BODY["messages"],
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result, {"type": "text", "text": "And now?"}]},
    ]
    without_tools = claude.messages.count_tokens(model="demo", messages=messages).input_tokens
    counted = claude.messages.count_tokens(model="demo", messages=messages, tools=[TOOL])
    assert counted.input_tokens > without_tools + 50
    response = claude.messages.create(model="demo", messages=messages, tools=[TOOL], max_tokens=9)
    assert (
        response.usage.input_tokens + response.usage.cache_read_input_tokens == counted.input_tokens
    )


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


def test_claude_code_request(claude):
    response = claude.messages.create(
        **{**BODY, "messages": [*BODY["messages"], {"role": "system", "content": "Be brief."}]},
        extra_body={
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "output_config": {"effort": "low"},
        },
    )
    assert response.type == "message"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_required_tool_call(claude, choice):
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}}
    schema |= {"required": ["city"], "additionalProperties": False}
    choice = {**choice, "disable_parallel_tool_use": True}
    body = {**BODY, "tools": [{**TOOL, "input_schema": schema}], "tool_choice": choice}
    with claude.messages.stream(**body) as stream:
        (block,) = stream.get_final_message().content
    assert block.name == "weather"
    assert block.input["city"] in ("Paris", "Rome")
    assert claude.messages.create(**body).stop_reason == "tool_use"


def test_json_schema(claude):
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}}
    schema |= {"required": ["city"], "additionalProperties": False}
    output_format = {"format": {"type": "json_schema", "schema": schema}}
    (block,) = claude.messages.create(**BODY, extra_body={"output_config": output_format}).content
    assert json.loads(block.text)["city"] in ("Paris", "Rome")


def test_only_the_billing_header_is_removed(claude):
    def count(system):
        messages = BODY["messages"]
        body = {"model": "demo", "messages": messages, "system": system}
        return claude.messages.count_tokens(**body).input_tokens

    line = "x-anthropic-billing-header: cc_version=1; abc"
    assert count(f"{line}\nBe kind.") == count("Be kind.")
    assert count([{"type": "text", "text": f"{line}\nBe kind."}]) == count("Be kind.")


def test_billing_header_is_removed_from_later_system_messages():
    line = "x-anthropic-billing-header: cc_version=1; abc"
    blocks = [{"type": "text", "text": line}, {"type": "text", "text": f"{line}\nBe brief."}]
    messages = [
        *BODY["messages"],
        {"role": "system", "content": f"{line}\nBe kind."},
        {"role": "system", "content": blocks},
        {"role": "system", "content": line},
    ]
    system = CountTokensRequest(messages=messages).to_template_messages()[1:]
    assert [message["content"] for message in system] == ["Be kind.", "Be brief."]


def test_prefill(claude):
    messages = [*BODY["messages"], {"role": "assistant", "content": "The capital of"}]
    response = claude.messages.create(**{**BODY, "messages": messages})
    assert response.content[0].text == " France is Paris."


def test_text_documents_and_redacted_thinking(claude):
    def count(content):
        messages = [*BODY["messages"], {"role": "assistant", "content": content}]
        messages += BODY["messages"]
        return claude.messages.count_tokens(model="demo", messages=messages).input_tokens

    response = {"type": "text", "text": "Paris."}
    source = {"type": "text", "media_type": "text/plain", "data": "Rome is old."}
    document = {"type": "document", "source": source, "title": "Rome"}
    assert count([document, response]) > count([response])
    assert count([{"type": "redacted_thinking", "data": "x"}, response]) == count([response])


def test_tool_runner_of_the_sdk(claude):
    @anthropic.beta_tool
    def weather(city: str) -> str:
        """The weather of a city."""
        return f"{city}: sunny"

    runner = claude.beta.messages.tool_runner(**BODY, tools=[weather])
    assert [message.stop_reason for message in runner] == ["end_turn"]


def test_head_request(server):
    for path in ("/", "/api/hello"):  # Claude Code's connection checks
        response = httpx2.head(server.url + path)
        assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_tokens": -1}, "max_tokens must be at least 0, got -1"),
        ({"messages": []}, "messages must have 1 or more elements, got 0"),
        ({"tool_choice": {"type": "any"}}, "tool_choice requires tools, but tools is empty."),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "got 'x'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "content[0] has the type 'image'; this model accepts text only",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "document", "source": {"type": "base64"}}],
                    }
                ]
            },
            "content[0].source has the type 'base64'; this model accepts text only",
        ),
    ],
)
def test_invalid_request_is_400(claude, change, message):
    with pytest.raises(anthropic.BadRequestError) as error:
        claude.messages.create(**BODY, extra_body=change)
    assert error.value.body["type"] == "error"
    assert error.value.body["error"]["type"] == "invalid_request_error"
    assert message in error.value.body["error"]["message"]


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
