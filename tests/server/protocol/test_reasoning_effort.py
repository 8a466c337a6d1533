"""Reasoning effort sets thinking budgets; no-op field values are accepted."""

import json

import pytest
from pydantic import ValidationError

from tiny_llm.demo import TARGET_PATH
from tiny_llm.models.tokenizer.tokenizer import open_tokenizer
from tiny_llm.server.anthropic.messages_schema import MessagesRequest
from tiny_llm.server.anthropic.tools_schema import MessagesTool
from tiny_llm.server.http.unsupported import warn_once
from tiny_llm.server.http.validation import validation_error
from tiny_llm.server.openai.chat_schema import ChatCompletionRequest
from tiny_llm.server.openai.responses_schema import ResponsesRequest
from tiny_llm.server.protocol.prompts import PromptRenderer
from tiny_llm.server.protocol.request_fields import thinking_budget

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.mark.parametrize(
    ("tokens", "effort", "max_tokens", "budget"),
    [
        (None, None, 100, None),
        (None, "minimal", None, 128),
        (None, "low", 2000, 512),
        (None, "medium", 32_000, 2048),
        (None, "medium", 101, 50),  # half of max_tokens is reserved for the content
        (None, "minimal", 1, 0),
        (None, "high", 100, None),
        (None, "max", 100, None),
        (None, "none", 100, None),
        (7, "minimal", 10, 7),  # an explicit budget takes precedence
        (0, "high", 10, 0),
        (-1, "minimal", 10, None),
    ],
)
def test_effort_level_budgets(tokens, effort, max_tokens, budget):
    assert thinking_budget(tokens, effort, max_tokens) == budget


def test_every_protocol_passes_the_budget():
    chat = ChatCompletionRequest(messages=MESSAGES, reasoning_effort="low")
    assert chat.sampling_params({}, 30, None).thinking_token_budget == 15
    response = ResponsesRequest(input="Hello", reasoning={"effort": "minimal"})
    assert response.shared_params(None)["thinking_token_budget"] == 128
    body = {"messages": MESSAGES, "max_tokens": 4000, "output_config": {"effort": "low"}}
    assert MessagesRequest(**body).thinking_budget is None  # thinking is off
    assert MessagesRequest(**body, thinking={"type": "adaptive"}).thinking_budget == 512
    named = {"type": "enabled", "budget_tokens": 1024}
    assert MessagesRequest(**body, thinking=named).thinking_budget == 1024


@pytest.mark.slow
def test_effort_level_bounds_reasoning(client):
    def ask(**fields):
        body = {"model": "demo", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
        return client.chat.completions.create(**body, **fields)

    with_effort = ask(reasoning_effort="minimal")
    same = ask(extra_body={"thinking_token_budget": 6})
    assert with_effort.choices == same.choices
    assert with_effort.choices[0].message.content
    assert not ask(reasoning_effort="high").choices[0].message.content


def test_input_examples_are_added_to_the_description():
    tool = MessagesTool(
        name="weather",
        description="Tells the weather.",
        input_schema={"type": "object"},
        input_examples=[{"city": "Zürich"}, {"city": "Paris"}],
    )
    description = tool.openai_tool()["function"]["description"]
    head = "Tells the weather.\nInput examples:\n"
    assert description == head + '{"city": "Zürich"}\n{"city": "Paris"}'


TOOL = {"name": "weather", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        (
            {"tools": [{**TOOL, "defer_loading": True}]},
            "tools[0].defer_loading .* tool search",
        ),
        (
            {"tools": [TOOL, {**TOOL, "allowed_callers": ["direct", "code_execution_20250825"]}]},
            "tools[1].allowed_callers[1] .* does not run tools",
        ),
        (
            {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
            "context_management.edits[0].type .* not edited",
        ),
        (
            {"billing_policy": {"type": "billing_policy", "bill_to": "user_profile"}},
            "billing_policy.bill_to .* does not bill requests",
        ),
        ({"output_config": {"effort": "much"}}, "output_config.effort .* 'low'"),
    ],
)
def test_unsupported_values_are_rejected_with_a_reason(fields, pattern):
    body = {"messages": MESSAGES, "max_tokens": 10, **fields}
    with pytest.raises(ValidationError) as failed:
        MessagesRequest.model_validate_json(json.dumps(body))
    errors = [{**error, "loc": ("body", *error["loc"])} for error in failed.value.errors()]
    message = validation_error(errors).message
    for part in pattern.split(" .* "):
        assert part in message


def test_no_op_values_are_accepted(server):
    tool = {**TOOL, "defer_loading": False, "allowed_callers": ["direct"]}
    edit = {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}
    body = {
        "messages": MESSAGES,
        "max_tokens": 4,
        "tools": [tool],
        "context_management": {"edits": [edit]},
        "billing_policy": {"type": "billing_policy", "bill_to": "self"},
        "diagnostics": {"previous_message_id": None},
    }
    assert "diagnostics" not in server.post("/v1/messages", body).json()
    request = {**body, "diagnostics": {"previous_message_id": "msg_1"}}
    response = server.post("/v1/messages", request).json()
    assert response["diagnostics"] == {"cache_miss_reason": {"type": "unavailable"}}
    log = "".join(server.lines)
    assert log.count("context_management is ignored") == 1


@pytest.mark.parametrize("enable_thinking", [True, False, None])
def test_thinking_option_without_a_thinking_mode_is_named_as_ignored(caplog, enable_thinking):
    tokenizer = open_tokenizer(TARGET_PATH, json.loads((TARGET_PATH / "config.json").read_text()))
    tokenizer.has_thinking = False
    renderer = PromptRenderer(tokenizer)
    renderer.max_tokens = 2048
    warn_once.cache_clear()
    renderer.render_chat(MESSAGES, None, {"enable_thinking": enable_thinking})
    messages = [record.message for record in caplog.records]
    ignored = "the model has no thinking mode: options that enable thinking are ignored"
    assert messages == ([ignored] if enable_thinking else [])
