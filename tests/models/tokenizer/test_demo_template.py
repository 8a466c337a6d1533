"""The demo's chat template renders tools in Qwen3's format."""

from tests.support import function_tool
from tiny_llm.demo import DRAFT_PATH, HYBRID_PATH, TARGET_PATH
from tiny_llm.models.tokenizer.chat_template import render_template

TEMPLATE = (TARGET_PATH / "chat_template.jinja").read_text()
TOOL = function_tool("weather", {"type": "object"})
LISTED = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
"""
CALLS = [
    {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"in": "Zürich"}}},
    {"function": {"name": "weather", "arguments": '{"in": "Rome"}'}},
]
CALLED = """<tool_call>
{"name": "weather", "arguments": {"in": "Zürich"}}
</tool_call>
<tool_call>
{"name": "weather", "arguments": {"in": "Rome"}}
</tool_call><|im_end|>
"""


def turn(role, content):
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def test_tools_calls_and_results():
    system = f"<|im_start|>system\n{LISTED}"
    user = {"role": "user", "content": "Hello"}
    assert render_template(TEMPLATE, [user], tools=[TOOL]) == system + turn("user", "Hello")
    messages = [
        {"role": "system", "content": "Be brief."},
        user,
        {"role": "assistant", "tool_calls": CALLS},
        {"role": "tool", "content": "sunny"},
        {"role": "tool", "content": "rainy"},
        {"role": "assistant", "content": "I call again.", "tool_calls": CALLS},
        {"role": "tool", "content": "cold"},
    ]
    sunny, rainy, cold = (
        f"<tool_response>\n{weather}\n</tool_response>" for weather in ("sunny", "rainy", "cold")
    )
    assert render_template(TEMPLATE, messages, tools=[TOOL]) == (
        f"<|im_start|>system\nBe brief.\n\n{LISTED}"
        + turn("user", "Hello")
        + f"<|im_start|>assistant\n{CALLED}"
        + turn("user", f"{sunny}\n{rainy}")
        + f"<|im_start|>assistant\nI call again.\n{CALLED}"
        + turn("user", cold)
    )


def test_chat_without_tools():
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nSo."},
    ]
    text = turn("system", "Be brief.") + turn("user", "Why?") + turn("assistant", "So.")
    assert render_template(TEMPLATE, messages, tools=None) == text
    opened = f"{text}<|im_start|>assistant\n"
    assert render_template(TEMPLATE, messages, add_generation_prompt=True) == opened
    closed = render_template(TEMPLATE, messages, add_generation_prompt=True, enable_thinking=False)
    assert closed == f"{opened}<think>\n\n</think>\n\n"


def test_bundled_models_share_the_tokenizer_and_template():
    for folder in (DRAFT_PATH, HYBRID_PATH):
        for name in ("chat_template.jinja", "tokenizer.json", "tokenizer_config.json"):
            assert (folder / name).read_bytes() == (TARGET_PATH / name).read_bytes()
