"""Schemas of required tools: relaxed with a warning unless strict."""

import json

import anthropic
import openai
import pytest

from tests.server.protocols import CHAT, PROTOCOLS, RESPONSES
from tests.support import object_schema

QUESTION = "Book a table."
GUESTS = {"type": "array", "items": {"enum": ["Al", "Bo"]}, "maxItems": 2, "uniqueItems": True}
MENU = {"const": "a.pdf", "format": "path"}
SCHEMA = object_schema(day={"enum": ["Monday", "Tuesday"]}, guests=GUESTS, menu=MENU)
STRICT_ERROR = (
    "the schema of the tool 'book' is strict, but these keywords cannot be enforced: "
    "'/properties/guests/uniqueItems', '/properties/menu/format'; remove them, or set strict to "
    "false."
)
REJECTED = (openai.BadRequestError, anthropic.BadRequestError)


def call(server, protocol, stream, **strict):
    """Arguments of a required call."""
    tools = [{"name": "other", "parameters": {}}, {"name": "book", "parameters": SCHEMA, **strict}]
    options = {"stream": stream, "temperature": 0, "max_tokens": 200}
    answer = protocol.ask(server, QUESTION, tools, "book", **options)
    if protocol is RESPONSES and not stream:
        assert answer.raw.tools[1].strict is False
    return answer.calls[0].arguments


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
@pytest.mark.parametrize("stream", [False, True])
def test_required_tool_is_relaxed_unless_strict(server, protocol, stream, monkeypatch):
    with pytest.raises(REJECTED) as error:
        call(server, protocol, stream, strict=True)
    assert STRICT_ERROR in error.value.message
    # A value that the grammar allows, but `uniqueItems` forbids.
    name = f"{protocol}_{stream}"
    monkeypatch.setitem(SCHEMA["properties"], name, {"enum": [["Al", "Al"]], "uniqueItems": True})
    monkeypatch.setitem(SCHEMA, "required", [*SCHEMA["required"], name])
    arguments = call(server, protocol, stream)
    assert arguments.keys() == {"day", "guests", "menu", name}
    assert (arguments["menu"], arguments[name]) == ("a.pdf", ["Al", "Al"])
    server.wait_for("tool 'book' is only partially enforced: '/properties/guests/uniqueItems'")
    violated = f"the output violates the schema of the tool 'book' at .*'/properties/{name}/unique"
    server.wait_for(violated)


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_duplicate_tool_names_are_rejected(server, protocol):
    tool = {"name": "book", "parameters": {"type": "object"}}
    assert server.reject(protocol.path, protocol.body(QUESTION, [tool, tool])) == (
        "tools must have unique names, got 'book' several times; rename or remove one."
    )


def test_response_format_is_relaxed_unless_strict(server):
    schema = object_schema(a={"const": 1, "not": {}})
    for protocol in (CHAT, RESPONSES):
        answer = protocol.ask(server, QUESTION, schema=schema, temperature=0)
        assert json.loads(answer.text) == {"a": 1}
    strict = CHAT.body(schema=schema)
    strict["response_format"]["json_schema"]["strict"] = True
    message = (
        "the JSON schema is strict, but these keywords cannot be enforced: '/properties/a/not'"
    )
    for body in (strict, CHAT.body(structured_outputs={"json": schema})):  # vLLM's field
        assert message in server.reject(CHAT.path, body)


def test_strict_is_not_part_of_the_prompt(server):
    tool = {"name": "book", "parameters": SCHEMA}
    counts = {
        RESPONSES.count(server, QUESTION, [{**tool, **strict}])
        for strict in ({}, {"strict": False}, {"strict": True})
    }
    assert len(counts) == 1
