"""Schemas of required tools: relaxed with a warning unless strict."""

import json

import anthropic
import openai
import pytest

QUESTION = [{"role": "user", "content": "Book a table."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "day": {"enum": ["Monday", "Tuesday"]},
        "guests": {
            "type": "array",
            "items": {"enum": ["Al", "Bo"]},
            "maxItems": 2,
            "uniqueItems": True,
        },
        "menu": {"const": "a.pdf", "format": "path"},
    },
    "required": ["day", "guests", "menu"],
}
GREEDY = {"temperature": 0, "reasoning_effort": "none"}
STRICT_ERROR = (
    "the schema of the tool 'book' is strict, but these keywords cannot be enforced: "
    "'/properties/guests/uniqueItems', '/properties/menu/format'; remove them, or set strict to "
    "false."
)


def chat(client, stream, **strict):
    """Arguments of a tool call through the Chat Completions API."""
    function = {"name": "book", "parameters": SCHEMA, **strict}
    other = {"type": "function", "function": {"name": "other"}}
    body = {"messages": QUESTION, "tools": [other, {"type": "function", "function": function}]}
    choice = {"type": "function", "function": {"name": "book"}}
    response = client.chat.completions.create(
        model="demo", **body, tool_choice=choice, stream=stream, max_tokens=200, **GREEDY
    )
    if not stream:
        return response.choices[0].message.tool_calls[0].function.arguments
    calls = [call for chunk in response for call in chunk.choices[0].delta.tool_calls or ()]
    return "".join(call.function.arguments or "" for call in calls)


def responses(client, stream, **strict):
    """Arguments of a tool call through the Responses API."""
    tools = [{"type": "function", "name": "book", "parameters": SCHEMA, **strict}]
    response = client.responses.create(
        model="demo",
        input=QUESTION,
        tools=tools,
        tool_choice="required",
        parallel_tool_calls=False,
        stream=stream,
        max_output_tokens=200,
        reasoning={"effort": "none"},
        temperature=0,
    )
    if not stream:
        assert response.tools[0].strict is strict.get("strict", False)
        return next(item for item in response.output if item.type == "function_call").arguments
    kind = "response.function_call_arguments.done"
    return next(event for event in response if event.type == kind).arguments


def messages(client, stream, **strict):
    """Arguments of a tool call through the Messages API."""
    claude = anthropic.Anthropic(
        base_url=str(client.base_url).removesuffix("/v1/"), api_key="none", max_retries=0
    )
    body = {"messages": QUESTION, "tools": [{"name": "book", "input_schema": SCHEMA, **strict}]}
    body |= {
        "model": "demo",
        "max_tokens": 200,
        "extra_body": {"temperature": 0},
        "tool_choice": {"type": "tool", "name": "book"},
    }
    if not stream:
        return json.dumps(claude.messages.create(**body).content[0].input)
    with claude.messages.stream(**body) as events:
        return json.dumps(events.get_final_message().content[0].input)


@pytest.mark.parametrize("call", [chat, responses, messages])
@pytest.mark.parametrize("stream", [False, True])
def test_required_tool_is_relaxed_unless_strict(server, client, call, stream):
    arguments = json.loads(call(client, stream))
    assert arguments.keys() == {"day", "guests", "menu"}
    assert arguments["menu"] == "a.pdf"
    server.wait_for("tool 'book' is only partially enforced: '/properties/guests/uniqueItems'")
    with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)) as error:
        call(client, stream, strict=True)
    assert STRICT_ERROR in error.value.message


@pytest.mark.parametrize("call", [chat, responses, messages])
@pytest.mark.parametrize("stream", [False, True])
def test_violated_keywords_are_logged(server, client, call, stream, monkeypatch):
    name = f"{call.__name__}_{stream}"
    guests = {"enum": [["Al", "Al"]], "uniqueItems": True}
    monkeypatch.setitem(SCHEMA["properties"], name, guests)
    monkeypatch.setitem(SCHEMA, "required", [*SCHEMA["required"], name])
    assert json.loads(call(client, stream))[name] == ["Al", "Al"]
    server.wait_for(
        f"the output violates the schema of the tool 'book' at .*'/properties/{name}/unique"
    )


@pytest.mark.parametrize(
    ("path", "tool"),
    [
        ("/v1/chat/completions", {"type": "function", "function": {"name": "book"}}),
        ("/v1/responses", {"type": "function", "name": "book"}),
        ("/v1/messages", {"name": "book", "input_schema": {"type": "object"}}),
    ],
)
def test_duplicate_tool_names_are_rejected(server, path, tool):
    conversation = {"input" if path == "/v1/responses" else "messages": QUESTION}
    limit = {"max_tokens": 1} if path == "/v1/messages" else {}
    response = server.post(path, {**conversation, **limit, "tools": [tool, tool]})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == (
        "tools must have unique names, got 'book' several times; rename or remove one."
    )


def test_response_format_is_relaxed_unless_strict(client):
    schema = {"type": "object", "properties": {"a": {"const": 1, "not": {}}}, "required": ["a"]}
    response_schema = {"name": "answer", "schema": schema}
    body = {"model": "demo", "messages": QUESTION, "max_tokens": 40, **GREEDY}
    answer = client.chat.completions.create(
        **body, response_format={"type": "json_schema", "json_schema": response_schema}
    )
    assert json.loads(answer.choices[0].message.content) == {"a": 1}
    answer = client.responses.create(
        model="demo",
        input=QUESTION,
        temperature=0,
        text={"format": {"type": "json_schema", **response_schema}},
    )
    assert json.loads(answer.output_text) == {"a": 1}
    message = (
        "the JSON schema is strict, but these keywords cannot be enforced: '/properties/a/not'"
    )
    for strict in (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {**response_schema, "strict": True},
            }
        },
        {"extra_body": {"structured_outputs": {"json": schema}}},  # vLLM's field
    ):
        with pytest.raises(openai.BadRequestError, match=message):
            client.chat.completions.create(**body, **strict)


def test_strict_is_not_part_of_the_prompt(client):
    function = {"name": "book", "parameters": SCHEMA}
    counts = {
        client.responses.input_tokens.count(
            model="demo", input=QUESTION, tools=[{"type": "function", **function, **strict}]
        ).input_tokens
        for strict in ({}, {"strict": False}, {"strict": True})
    }
    assert len(counts) == 1
