"""Validation errors name the field, the requirement and the value."""

import pydantic
import pytest

from tiny_llm.server.http.validation import validation_error
from tiny_llm.server.openai.chat_schema import ChatCompletionRequest

BODY = {"model": "demo", "messages": [{"role": "user", "content": "Why?"}]}


@pytest.mark.parametrize(
    ("fields", "message_part"),
    [
        ({"messages": 5}, "messages must be a list, got 5."),
        ({"messages": []}, "messages must have 1 or more elements, got 0."),
        ({"messages": [5]}, "messages[0] must be an object, got 5."),
        ({"temperature": "hot"}, "temperature must be a number, got 'hot'."),
        ({"n": 0}, "n must be at least 1, got 0."),
        ({"n": 1.5}, "n must be an integer, got 1.5."),
        ({"logit_bias": [1]}, "logit_bias must be an object, got a list."),
        ({"user": {"a": "x" * 10**6}}, "user must be a string, got an object."),
        ({"seed": "x" * 10**6}, f"seed must be an integer, got '{'x' * 56}…."),
        ({"stream": None, "logprobs": "maybe"}, "logprobs must be true or false, got 'maybe'."),
        ({"top_logprobs": 50}, "top_logprobs must be at most 20, got 50."),
        ({"reasoning_effort": True}, "got true."),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice.function is required."),
        (
            {"messages": [{"role": "user", "content": [{"text": "Why?"}]}]},
            "messages[0].content[0].type is required.",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text is required.",
        ),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools[0].function is required."),
        (
            {"tools": [{"type": "custom", "custom": {"name": "f"}}]},
            "tools[0].type must be 'function', got 'custom': the model calls functions, which the "
            "client runs.",
        ),
    ],
)
def test_sentence_names_field_requirement_and_value(fields, message_part):
    with pytest.raises(pydantic.ValidationError) as caught:
        ChatCompletionRequest.model_validate({**BODY, **fields})
    errors = [{**error, "loc": ("body", *error["loc"])} for error in caught.value.errors()]
    message = str(validation_error(errors))
    assert message.endswith(message_part)
    assert "input should" not in message
