"""Reasoning effort sets thinking budgets; tool examples and diagnostics of messages."""

import pytest

from tiny_llm.server.anthropic.messages_schema import MessagesRequest, MessagesTool
from tiny_llm.server.openai.chat_schema import ChatCompletionRequest
from tiny_llm.server.openai.responses_schema import ResponsesRequest
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
    fields = {"thinking_token_budget": 2, "top_k": 20, "min_p": 0.01, "seed": 7}
    assert ResponsesRequest(input="Hello", **fields).shared_params(None).items() >= fields.items()
    body = {"messages": MESSAGES, "max_tokens": 4000, "output_config": {"effort": "low"}}
    assert MessagesRequest(**body).thinking_budget is None  # thinking is off
    assert MessagesRequest(**body, thinking={"type": "adaptive"}).thinking_budget == 512
    named = {"type": "enabled", "budget_tokens": 1024}
    assert MessagesRequest(**body, thinking=named).thinking_budget == 1024


def test_every_protocol_passes_the_effort_to_the_template():
    chat = ChatCompletionRequest(messages=MESSAGES, reasoning_effort="low")
    response = ResponsesRequest(input="Hello", reasoning={"effort": "low"})
    message = MessagesRequest(messages=MESSAGES, max_tokens=9, output_config={"effort": "low"})
    for body in (chat, response, message):
        assert body.template_variables()["reasoning_effort"] == "low"
    named = chat.model_copy(update={"chat_template_kwargs": {"reasoning_effort": "high"}})
    assert named.template_variables()["reasoning_effort"] == "high"


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


def test_diagnostics(server):
    body = {"messages": MESSAGES, "max_tokens": 4, "diagnostics": {"previous_message_id": None}}
    assert "diagnostics" not in server.post("/v1/messages", body).json()
    request = {**body, "diagnostics": {"previous_message_id": "msg_1"}}
    response = server.post("/v1/messages", request).json()
    assert response["diagnostics"] == {"cache_miss_reason": {"type": "unavailable"}}
