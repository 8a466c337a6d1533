"""Chat template rendering, for templates with and without tool support."""

import json

import pytest

from tests.engine.inputs.conversations import tokenizer_with
from tiny_llm import UserError
from tiny_llm.engine.inputs.chat_template import check_messages, render_chat

USER = {"role": "user", "content": "Why?"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = {"function": {"name": "add", "arguments": '{"a": 1}'}}

# A shorter version of Qwen3's template.
TEMPLATE = (
    "{% for tool in tools or [] %}[{{ tool | tojson }}]{% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.reasoning_content }}|{{ m.content }}"
    "{% for call in m.tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}. {% endfor %}"
    "{% if style %}{{ style }}{% endif %}"
)
PLAIN_TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"


def render(messages, tools=None, template=TEMPLATE, **variables):
    return render_chat(tokenizer_with(template), check_messages(messages), tools, variables)


def test_template_receives_tools_reasoning_and_variables():
    assistant = {"role": "assistant", "tool_calls": [CALL], "reasoning_content": "hm"}
    text = render([USER, assistant], [TOOL], style="short")
    assert text.startswith('[{"type": "function", "function": {"name": "add"')
    assert text.endswith('assistant: hm|{"a": 1}. short')


def test_template_without_tool_support_lists_tools_in_the_system_message():
    text = render([USER], [TOOL], PLAIN_TEMPLATE)
    assert text.startswith("[system] # Tools\n")
    assert f"<tools>\n{json.dumps(TOOL)}\n</tools>" in text
    assert text.endswith("</tool_call>\n[user] Why?\n")
    system = {"role": "system", "content": "Be brief."}
    text = render([system, USER], [TOOL], PLAIN_TEMPLATE)
    assert text.startswith("[system] Be brief.\n\n# Tools\n")
    assert text.count("[system]") == 1


@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_template_without_tool_support_receives_calls_and_results_as_text(tools):
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "42"},
        {"role": "assistant", "content": "Well:", "tool_calls": [CALL]},
    ]
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    assert render(messages, tools, PLAIN_TEMPLATE).endswith(
        f"[user] Why?\n[assistant] {call}\n"
        "[user] <tool_response>\n42\n</tool_response>\n"
        f"[assistant] Well:\n{call}\n"
    )


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tools": 5}, "tools must be a list of functions, got 5."),
        ({"tools": [{"name": "add"}]}, "got {'name': 'add'}."),
        ({"variables": {"messages": []}}, "chat_template_kwargs must not contain 'messages'."),
        ({"template": "{{ messages.a.b }}"}, "the chat template failed: "),
        ({"template": None}, "the model has no chat template; "),
        ({"messages": []}, "messages must not be empty; pass at least one message"),
        (
            {"tools": [{**TOOL, "description": "\ud800"}]},
            "the chat template failed: the rendered text has an unpaired surrogate.",
        ),
    ],
)
def test_invalid_input_is_rejected(options, error):
    options = {"template": TEMPLATE, "messages": [USER], **options}
    tokenizer = tokenizer_with(options.pop("template"))
    with pytest.raises(UserError) as raised:
        render_chat(tokenizer, **options)
    assert error in str(raised.value)
    assert str(raised.value).endswith(".")
