"""Fields that real clients send are honored or deliberately ignored."""

import json

import openai
import pytest
from pydantic import BaseModel

from tests.server.protocols import CHAT, FRANCE, MESSAGES, RESPONSES, Call
from tiny_llm.server.http.unsupported import FIELD_REASONS

QUESTION = [{"role": "user", "content": FRANCE}]
PNG = "data:image/png;base64,iVBORw0KGgo="
IMAGE = {"type": "image_url", "image_url": {"url": PNG}}
SOURCE = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}
TEXT = {"type": "text", "media_type": "text/plain", "data": "Paris"}
SEARCH_RESULT = {
    "type": "search_result",
    "source": "https://a.example",
    "title": "Capitals",
    "content": [{"type": "text", "text": "Paris"}],
    "citations": {"enabled": True},
}


def omitted(medium):
    return f"[{medium} omitted: this model reads text only]"


def part(kind, **fields):
    return {"type": kind, **fields}


def user(*parts):
    return {"role": "user", "content": list(parts)}


def assistant(**fields):
    return {"role": "assistant", **fields}


def history(protocol, result, arguments="{}"):
    """A question, a tool call and its result."""
    if protocol is CHAT:
        function = {"name": "capital", "arguments": arguments}
        call = assistant(tool_calls=[part("function", id="c", function=function)])
    elif protocol is RESPONSES:
        call = part("function_call", call_id="c", name="capital", arguments=arguments)
    else:
        call = assistant(content=[part("tool_use", id="c", name="capital", input={})])
    return [*QUESTION, call, protocol.result(Call("c", "capital", {}), result)]


def read(beside):
    """Claude Code sends a PDF file beside the result of the tool that read it."""
    messages = history(MESSAGES, "read")
    messages[-1]["content"].append(beside)
    return messages


def thought(**fields):
    text = part("text", text="Paris.")
    return [*QUESTION, assistant(content=[*([fields] if fields else ()), text]), *QUESTION]


# Conversations with the same prompt.
SAME_PROMPT = [
    (CHAT, history(CHAT, "Paris", ""), history(CHAT, "Paris")),
    (RESPONSES, history(RESPONSES, "Paris", ""), history(RESPONSES, "Paris")),
    (
        MESSAGES,
        history(MESSAGES, [SEARCH_RESULT]),
        history(MESSAGES, "Capitals\nhttps://a.example\nParis"),
    ),
    # Media in tool results
    (CHAT, history(CHAT, [IMAGE]), history(CHAT, omitted("image"))),
    *(
        (
            CHAT,
            history(CHAT, [{"type": kind, kind: {"data": "JVBERi0="}}]),
            history(CHAT, omitted(medium)),
        )
        for kind, medium in (("input_audio", "audio"), ("file", "document"))
    ),
    (
        RESPONSES,
        history(RESPONSES, [part("input_image", image_url=PNG)]),
        history(RESPONSES, omitted("image")),
    ),
    (
        MESSAGES,
        history(MESSAGES, [part("image", source=SOURCE)]),
        history(MESSAGES, omitted("image")),
    ),
    (
        MESSAGES,
        history(MESSAGES, [part("document", source=PDF)]),
        history(MESSAGES, omitted("document")),
    ),
    (MESSAGES, history(MESSAGES, [part("document", source=TEXT)]), history(MESSAGES, "Paris")),
    (MESSAGES, read(part("document", source=PDF)), read(part("text", text=omitted("document")))),
    # Empty contents
    *(
        (
            CHAT,
            [*history(CHAT, "Paris"), {**message, "content": None}, *QUESTION],
            [*history(CHAT, "Paris"), {**message, "content": ""}, *QUESTION],
        )
        for message in (assistant(), {"role": "tool", "tool_call_id": "c"})
    ),
    (MESSAGES, thought(type="redacted_thinking", data="x"), thought()),
]


@pytest.mark.parametrize(("protocol", "messages", "same"), SAME_PROMPT)
def test_same_prompt(server, protocol, messages, same):
    def prompt(messages):
        if protocol is not CHAT:
            return protocol.count(server, messages)
        return CHAT.ask(server, messages, max_tokens=1, return_token_ids=True).raw.prompt_token_ids

    assert prompt(messages) == prompt(same)


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        (history(CHAT, "Paris", ""), '{"name": "capital", "arguments": {}}'),
        ([*QUESTION, assistant(content=None, refusal="Never."), *QUESTION], "assistant\nNever."),
        (
            [*QUESTION, assistant(content=[part("refusal", refusal="No.")]), *QUESTION],
            "assistant\nNo.",
        ),
        (
            [
                user(
                    part("text", text="One.", cache_control={"type": "ephemeral"}),
                    part("input_text", text="Two."),
                    part("output_text", text="Three."),
                )
            ],
            "user\nOne.\nTwo.\nThree.<|im_end|>",
        ),
        ([{"role": "developer", "content": "Be brief."}, *QUESTION], "system\nBe brief."),
        (history(CHAT, [part("text", text="Seen:"), IMAGE]), f"Seen:\n{omitted('image')}"),
    ],
)
def test_prompt(server, messages, text):
    ids = CHAT.ask(server, messages, max_tokens=1, return_token_ids=True).raw.prompt_token_ids
    assert text in server.post("/detokenize", {"tokens": ids}).json()["prompt"]
    if "omitted" in text:
        server.wait_for("WARNING each image in a tool result is replaced with text")


def test_documents_and_search_results_of_users(server):
    document = part("document", source=TEXT, title="Rome")
    assert MESSAGES.count(server, thought(**document)) > MESSAGES.count(server, thought())
    assert MESSAGES.ask(server, [user(SEARCH_RESULT)], max_tokens=1).raw.content


class City(BaseModel):
    """Schema of a structured output."""

    city: str


def test_parsed_messages_can_be_sent_back(server, client):
    tool = openai.pydantic_function_tool(City)
    parse = client.chat.completions.parse
    answer = parse(**CHAT.body(), response_format=City, max_tokens=30).choices[0].message
    choice = {"tool_choice": "required", "parallel_tool_calls": False}
    called = parse(**CHAT.body(), tools=[tool], **choice).choices[0].message
    [call] = called.tool_calls
    assert isinstance(answer.parsed, City)
    assert isinstance(call.function.parsed_arguments, City)
    result = {"role": "tool", "tool_call_id": call.id, "content": "ok"}
    CHAT.ask(server, [*QUESTION, answer, *QUESTION, called, result], max_tokens=4)
    # Frameworks store messages as dictionaries, including fields that the client library adds.
    answer, called = (message.model_dump(warnings=False) for message in (answer, called))
    assert "parsed" in answer
    assert "parsed_arguments" in called["tool_calls"][0]["function"]
    messages = [*QUESTION, answer, *QUESTION, called, result]
    ids = CHAT.ask(server, messages, max_tokens=4, return_token_ids=True).raw.prompt_token_ids
    assert "parsed" not in server.post("/detokenize", {"tokens": ids}).json()["prompt"]


def test_null_means_not_set(server):
    nulls = dict.fromkeys(FIELD_REASONS) | {"logprobs": False, "top_logprobs": 0}
    tools = {"tools": [], "tool_choice": {"type": "auto"}}
    for protocol, fields in (
        (CHAT, nulls),
        (MESSAGES, dict.fromkeys(FIELD_REASONS)),
        (MESSAGES, tools),
    ):
        body = {**fields, **protocol.body(max_tokens=1)}
        assert server.post(protocol.path, body).status_code == 200


def test_stop_token_ids_beyond_the_vocabulary_have_no_effect(server):
    no_effect = {"stop_token_ids": [128009, 2**40], "min_tokens": 2, "skip_special_tokens": True}
    plain, other = (CHAT.ask(server, temperature=0, **fields) for fields in ({}, no_effect))
    assert other.text == plain.text


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_do_not_match_in_reasoning(server, stream):
    body = {"effort": "high", "temperature": 0}
    full = CHAT.ask(server, **body)
    assert "France" in full.reasoning
    assert "France" in full.text
    stopped = CHAT.ask(server, **body, stop=["France"], stream=stream)
    assert stopped.reasoning == full.reasoning
    assert stopped.text == full.text.partition("France")[0]


def test_verbosity_is_echoed(server):
    answer = RESPONSES.ask(server, max_tokens=2, text={"verbosity": "low"})
    assert answer.raw.text.verbosity == "low"


def test_messages_output_format_and_mcp_servers(claude):
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    extra = {"output_format": {"type": "json_schema", "schema": schema}}
    body = MESSAGES.body(max_tokens=30)
    answer = claude.beta.messages.create(**body, mcp_servers=[], extra_body=extra)
    assert json.loads(answer.content[0].text) == {"a": 1}
