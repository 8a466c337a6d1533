"""Fields that real clients send are honored or deliberately ignored."""

import json

import openai
import pytest
from pydantic import BaseModel

from tests.server.protocols import CHAT, FRANCE, MESSAGES, RESPONSES, call
from tiny_llm.server.http.unsupported import FIELD_REASONS

QUESTION = [{"role": "user", "content": FRANCE}]
PNG = "data:image/png;base64,iVBORw0KGgo="


def part(kind, **fields):
    return {"type": kind, **fields}


def omitted(medium):
    return f"[{medium} omitted: this model reads text only]"


def user(*parts):
    return {"role": "user", "content": list(parts)}


def assistant(**fields):
    return {"role": "assistant", **fields}


def document(kind, media_type, data):
    return part("document", source=part(kind, media_type=media_type, data=data))


IMAGE = part("image_url", image_url={"url": PNG})
PDF = document("base64", "application/pdf", "JVBERi0=")
TEXT = document("text", "text/plain", "Paris")
SEARCH_RESULT = part(
    "search_result",
    source="https://a.example",
    title="Capitals",
    content=[part("text", text="Paris")],
    citations={"enabled": True},
)


def history(protocol, result, arguments="{}"):
    """A question, a tool call and its result."""
    if protocol is CHAT:
        function = {"name": "capital", "arguments": arguments}
        message = assistant(tool_calls=[part("function", id="c", function=function)])
    elif protocol is RESPONSES:
        message = part("function_call", call_id="c", name="capital", arguments=arguments)
    else:
        message = assistant(content=[part("tool_use", id="c", name="capital", input={})])
    return [*QUESTION, message, protocol.result(call("c", "capital", "{}"), result)]


def read(beside):
    """Claude Code sends a PDF file beside the result of the tool that read it."""
    messages = history(MESSAGES, "read")
    messages[-1]["content"].append(beside)
    return messages


def thought(*blocks):
    return [*QUESTION, assistant(content=[*blocks, part("text", text="Paris.")]), *QUESTION]


# Conversations with the same prompt.
SAME_PROMPT = [
    *((p, history(p, "Paris", ""), history(p, "Paris")) for p in (CHAT, RESPONSES)),
    # Documents, and media in tool results
    *(
        (protocol, history(protocol, [given]), history(protocol, same))
        for protocol, given, same in (
            (MESSAGES, SEARCH_RESULT, "Capitals\nhttps://a.example\nParis"),
            (MESSAGES, TEXT, "Paris"),
            (MESSAGES, PDF, omitted("document")),
            (MESSAGES, part("image", source=part("base64", data="iVBO")), omitted("image")),
            (RESPONSES, part("input_image", image_url=PNG), omitted("image")),
            (CHAT, IMAGE, omitted("image")),
            (CHAT, part("input_audio", input_audio={"data": "JVBERi0="}), omitted("audio")),
            (CHAT, part("file", file={"data": "JVBERi0="}), omitted("document")),
        )
    ),
    (MESSAGES, read(PDF), read(part("text", text=omitted("document")))),
    # Empty contents
    *(
        (
            CHAT,
            *([*history(CHAT, "Paris"), {**message, "content": c}, *QUESTION] for c in (None, "")),
        )
        for message in (assistant(), {"role": "tool", "tool_call_id": "c"})
    ),
    (MESSAGES, thought(part("redacted_thinking", data="x")), thought()),
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
        ([*QUESTION, assistant(content=[part("refusal", refusal="No.")])], "assistant\nNo."),
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
    titled = {**TEXT, "title": "Rome"}
    assert MESSAGES.count(server, thought(titled)) > MESSAGES.count(server, thought())
    assert MESSAGES.ask(server, [user(SEARCH_RESULT)], max_tokens=1).raw.content


class City(BaseModel):
    """Structured output."""

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


@pytest.mark.parametrize("off", [None, False, "", []])
def test_fields_that_are_off_are_accepted(server, off):
    tools = {"tools": [], "tool_choice": {"type": "auto"}}
    unsupported = dict.fromkeys(("use_beam_search", "suffix", "bad_words", "guided_json"), off)
    unsupported |= {"logprobs": False, "top_logprobs": 0, "typical_p": 1.0, "repeat_penalty": 1.0}
    nulls = dict.fromkeys(FIELD_REASONS)
    for protocol, fields in ((CHAT, nulls | unsupported), (MESSAGES, nulls), (MESSAGES, tools)):
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


# Default requests of Codex 0.169.0 and Claude Code 2.1.197, abridged.
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
CACHED = {"cache_control": {"type": "ephemeral"}}


def item(role, text):
    return part("message", id="msg_1", role=role, content=[part("input_text", text=text)])


CODEX = {
    "input": [item("developer", "Be brief."), item("user", "Here: /home."), item("user", FRANCE)],
    "tools": [
        {"type": "function", "name": "weather", "strict": False, "parameters": SCHEMA},
        {"type": "namespace", "name": "multi", "description": "Several.", "tools": []},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "01a20d66",
    "client_metadata": {"x-codex-installation-id": "fba48543"},
    "max_output_tokens": 8,  # not sent by Codex
}
CLAUDE_CODE = {
    "messages": [
        {
            "role": "user",
            "content": [part("text", text="It is noon."), part("text", text=FRANCE, **CACHED)],
        },
        {"role": "system", "content": "There are no other agents."},
    ],
    "system": [
        part("text", text="x-anthropic-billing-header: cc_version=2.1.197.73f;"),
        part("text", text="Be brief.", **CACHED),
    ],
    "tools": [{"name": "weather", "description": "The weather.", "input_schema": SCHEMA}],
    "metadata": {"user_id": json.dumps({"device_id": "0e0e23f0", "account_uuid": ""})},
    "max_tokens": 8,  # 32,000 in Claude Code
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
}
BODIES = {"/v1/responses": CODEX, "/v1/messages?beta=true": CLAUDE_CODE}


@pytest.mark.parametrize("path", BODIES)
def test_agent_request_gets_a_complete_stream(server, path):
    response = server.post(path, {"model": "demo", "stream": True, **BODIES[path]})
    assert response.status_code == 200, response.text
    kinds = [line[7:] for line in response.text.splitlines() if line.startswith("event: ")]
    assert kinds[-1] in ("response.incomplete", "response.completed", "message_stop")
    assert "error" not in kinds
