"""Fields that real clients send are honored or deliberately ignored."""

import json

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.server.running_server import RunningServer
from tiny_llm.server.http.unsupported import FIELD_REASONS

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
PNG = "data:image/png;base64,iVBORw0KGgo="
IMAGE = {"type": "image_url", "image_url": {"url": PNG}}
SOURCE = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
PLACEHOLDER = "[image omitted: this model reads text only]"
CHAT = {"model": "demo", "max_tokens": 4, "reasoning_effort": "none"}
ECHO = {**CHAT, "extra_body": {"return_token_ids": True}}


class City(BaseModel):
    """Schema of a structured output."""

    city: str


def tool_call_history(arguments: str) -> list[dict]:
    function = {"name": "capital", "arguments": arguments}
    return [
        *QUESTION,
        {
            "role": "assistant",
            "tool_calls": [{"id": "c", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c", "content": "Paris"},
    ]


def prompt(server: RunningServer, response) -> str:
    """Decodes the prompt of a chat completion with `return_token_ids`."""
    return server.post("/detokenize", {"tokens": response.prompt_token_ids}).json()["prompt"]


def test_empty_arguments_in_history_are_an_empty_object(server, client):
    empty = client.chat.completions.create(**ECHO, messages=tool_call_history(""))
    assert '{"name": "capital", "arguments": {}}' in prompt(server, empty)
    same = client.chat.completions.create(**ECHO, messages=tool_call_history("{}"))
    assert empty.prompt_token_ids == same.prompt_token_ids
    function = {"type": "function_call", "call_id": "c", "name": "capital", "arguments": ""}
    result = {"type": "function_call_output", "call_id": "c", "output": "Paris"}
    counted = client.responses.input_tokens.count(model="demo", input=[*QUESTION, function, result])
    with_braces = {**function, "arguments": "{}"}
    expected = client.responses.input_tokens.count(
        model="demo", input=[*QUESTION, with_braces, result]
    )
    assert counted.input_tokens == expected.input_tokens


def test_parsed_messages_can_be_sent_back(server, client):
    tool = openai.pydantic_function_tool(City)
    body = {"model": "demo", "messages": QUESTION, "reasoning_effort": "none"}
    answer = client.chat.completions.parse(**body, response_format=City, max_tokens=30)
    called = client.chat.completions.parse(
        **body, tools=[tool], tool_choice="required", parallel_tool_calls=False
    )
    messages = [answer.choices[0].message, called.choices[0].message]
    [function] = [call.function for call in messages[1].tool_calls]
    assert isinstance(messages[0].parsed, City)
    assert isinstance(function.parsed_arguments, City)
    result = {"role": "tool", "tool_call_id": messages[1].tool_calls[0].id, "content": "ok"}
    history = [*QUESTION, messages[0], *QUESTION, messages[1], result]
    client.chat.completions.create(**CHAT, messages=history)
    # Frameworks store messages as dictionaries, including fields that the client library adds.
    dumped = [message.model_dump(warnings=False) for message in messages]
    assert "parsed" in dumped[0]
    assert "parsed_arguments" in dumped[1]["tool_calls"][0]["function"]
    again = client.chat.completions.create(
        **ECHO, messages=[*QUESTION, dumped[0], *QUESTION, dumped[1], result]
    )
    assert "parsed" not in prompt(server, again)


def test_refusal_message_is_text(server, client):
    history = [*QUESTION, {"role": "assistant", "content": None, "refusal": "Never."}, *QUESTION]
    response = client.chat.completions.create(**ECHO, messages=history)
    assert "assistant\nNever." in prompt(server, response)


def test_text_parts(server, client):
    parts = [
        {"type": "text", "text": "One.", "cache_control": {"type": "ephemeral"}},
        {"type": "input_text", "text": "Two."},
    ]
    response = client.chat.completions.create(**ECHO, messages=[{"role": "user", "content": parts}])
    assert "user\nOne.\nTwo.<|im_end|>" in prompt(server, response)


def test_search_results_are_text(server, claude):
    result = {
        "type": "search_result",
        "source": "https://a.example",
        "title": "Capitals",
        "content": [{"type": "text", "text": "Paris"}],
        "citations": {"enabled": True},
    }
    use = {"type": "tool_use", "id": "t", "name": "search", "input": {}}
    returned = {"type": "tool_result", "tool_use_id": "t", "content": [result]}
    plain = {**returned, "content": "Capitals\nhttps://a.example\nParis"}
    counts = []
    for block in (returned, plain):
        history = [
            *QUESTION,
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [block]},
        ]
        counts.append(claude.messages.count_tokens(model="demo", messages=history).input_tokens)
    assert counts[0] == counts[1]
    user_messages = [{"role": "user", "content": [result]}]
    assert claude.messages.create(model="demo", max_tokens=1, messages=user_messages).content


def test_images_of_tool_results_are_replaced(server, client, claude):
    history = tool_call_history("{}")
    history[-1]["content"] = [{"type": "text", "text": "Seen:"}, IMAGE]
    response = client.chat.completions.create(**ECHO, messages=history)
    assert f"Seen:\n{PLACEHOLDER}" in prompt(server, response)
    server.wait_for("WARNING each image in a tool result is replaced with text")
    use = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c"}
    counts = [
        client.responses.input_tokens.count(
            model="demo", input=[*QUESTION, use, {**result, "output": output}]
        ).input_tokens
        for output in ([{"type": "input_image", "image_url": PNG}], PLACEHOLDER)
    ]
    assert counts[0] == counts[1]
    use = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}],
    }
    counts = [
        claude.messages.count_tokens(
            model="demo",
            messages=[
                *QUESTION,
                use,
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "t", "content": content}],
                },
            ],
        ).input_tokens
        for content in ([{"type": "image", "source": SOURCE}], PLACEHOLDER)
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("kind", ["input_audio", "file"])
def test_media_of_tool_results_are_replaced(server, client, kind):
    history = tool_call_history("{}")
    history[-1]["content"] = [{"type": kind, kind: {"data": "JVBERi0="}}]
    response = client.chat.completions.create(**ECHO, messages=history)
    medium = {"input_audio": "audio", "file": "document"}[kind]
    assert f"[{medium} omitted: this model reads text only]" in prompt(server, response)


def test_documents_of_tool_results(claude):
    """Claude Code sends a PDF file beside the result of the tool that read it."""
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
    text = {"type": "text", "media_type": "text/plain", "data": "Paris"}

    def count(result, *beside):
        returned = {"type": "tool_result", "tool_use_id": "t", "content": result}
        calls = {"role": "assistant", "content": [use]}
        history = [*QUESTION, calls, {"role": "user", "content": [returned, *beside]}]
        return claude.messages.count_tokens(model="demo", messages=history).input_tokens

    omitted = PLACEHOLDER.replace("image", "document")
    document = {"type": "document", "source": pdf}
    assert count([document]) == count(omitted)
    assert count([{"type": "document", "source": text}]) == count("Paris")
    assert count("read", document) == count("read", {"type": "text", "text": omitted})


@pytest.mark.parametrize("message", [{"role": "assistant"}, {"role": "tool", "tool_call_id": "c"}])
def test_null_content_is_empty(client, message):
    tokens = [
        client.chat.completions.create(
            **ECHO, messages=[*tool_call_history("{}"), {**message, "content": content}, *QUESTION]
        ).prompt_token_ids
        for content in (None, "")
    ]
    assert tokens[0] == tokens[1]


def test_null_means_not_set(server):
    body = {"messages": QUESTION, "max_tokens": 1, "logprobs": False, "top_logprobs": 0}
    nulls = dict.fromkeys(FIELD_REASONS)
    for path in ("/v1/chat/completions", "/v1/messages"):
        fields = body if "chat" in path else {"messages": QUESTION, "max_tokens": 1}
        assert server.post(path, {**nulls, **fields}).status_code == 200
    empty = {**fields, "tools": [], "tool_choice": {"type": "auto"}}
    assert server.post("/v1/messages", empty).status_code == 200


def test_images_of_users_are_rejected(client, claude):
    with pytest.raises(openai.BadRequestError, match="'image_url'; this model accepts text only"):
        client.chat.completions.create(**CHAT, messages=[{"role": "user", "content": [IMAGE]}])
    image = {"type": "input_image", "image_url": PNG}
    with pytest.raises(openai.BadRequestError, match="the model accepts text only"):
        client.responses.create(model="demo", input=[{"role": "user", "content": [image]}])
    image = {"type": "image", "source": SOURCE}
    with pytest.raises(anthropic.BadRequestError, match="'image'; this model accepts text only"):
        claude.messages.create(
            model="demo", max_tokens=1, messages=[{"role": "user", "content": [image]}]
        )


def test_stop_token_ids_beyond_the_vocabulary_have_no_effect(client):
    plain = client.chat.completions.create(**CHAT, messages=QUESTION, temperature=0)
    ignored_fields = {
        "stop_token_ids": [128009, 2**40],
        "min_tokens": 2,
        "skip_special_tokens": True,
    }
    other = client.chat.completions.create(
        **CHAT, messages=QUESTION, temperature=0, extra_body=ignored_fields
    )
    assert other.choices[0].message.content == plain.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_do_not_match_in_reasoning(client, stream):
    body = {"model": "demo", "messages": QUESTION, "reasoning_effort": "high", "temperature": 0}
    full = client.chat.completions.create(**body).choices[0].message
    assert "France" in full.reasoning_content
    assert "France" in full.content
    response = client.chat.completions.create(**body, stop=["France"], stream=stream)
    if stream:
        deltas = [chunk.choices[0].delta for chunk in response]
        reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
        content = "".join(delta.content or "" for delta in deltas)
    else:
        message = response.choices[0].message
        reasoning, content = message.reasoning_content, message.content
    assert reasoning == full.reasoning_content
    assert content == full.content.partition("France")[0]


def test_verbosity_is_echoed(client):
    response = client.responses.create(
        model="demo", input="Hello", max_output_tokens=2, text={"verbosity": "low"}
    )
    assert response.text.verbosity == "low"


def test_messages_output_format_and_mcp_servers(claude):
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    output_format = {"type": "json_schema", "schema": schema}
    body = {"model": "demo", "max_tokens": 30, "messages": QUESTION}
    answer = claude.beta.messages.create(
        **body, mcp_servers=[], extra_body={"output_format": output_format}
    )
    assert json.loads(answer.content[0].text) == {"a": 1}
    with pytest.raises(anthropic.BadRequestError, match="output_format and output_config.format"):
        claude.messages.create(
            **body,
            output_config={"format": output_format},
            extra_body={"output_format": output_format},
        )
    server = {"type": "url", "name": "a", "url": "https://a.example"}
    with pytest.raises(anthropic.BadRequestError, match="this server does not run tools"):
        claude.beta.messages.create(**body, mcp_servers=[server])
