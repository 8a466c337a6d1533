"""Tool call formats in the engine: `tool_call_parser`, reasoning, call ids."""

import json
import re

import pytest

from tests.engine.tool_calls.support import byte_tokenizer, write_calls
from tests.engine.tool_calls.templates import TEMPLATES
from tiny_llm import LLM, SamplingParams, ToolCalls, UserError
from tiny_llm.engine.inputs.chat_template import render_chat
from tiny_llm.engine.structured_output.compiler import GrammarCompiler
from tiny_llm.engine.structured_output.grammar import ThinkingState

SCHEMA = {"type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}
TOOL = {"type": "function", "function": {"name": "switch", "parameters": SCHEMA}}


@pytest.mark.parametrize(
    ("parser", "expected"),
    [
        ("auto", r'<tool_call>\n\{"name": "switch", "arguments": \{.*\}\}\n</tool_call>'),
        (
            "qwen3_coder",
            r"<tool_call>\n<function=switch>\n<parameter=on>\n(true|false)\n</parameter>\n"
            r"</function>\n</tool_call>",
        ),
        ("llama3_json", r'\{"name": "switch", "parameters": \{.*\}\}'),
        ("mistral", r'\[TOOL_CALLS\] ?\[\{"name": "switch", "arguments": \{.*\}.*\]'),
    ],
)
def test_tool_call_parser_option(demo, parser, expected):
    pytest.importorskip("llguidance")
    llm = LLM(demo, kv_cache_bytes=2**23, tool_call_parser=parser)
    constraint = ToolCalls([TOOL], "required", parallel=False)
    params = SamplingParams(temperature=0, max_tokens=60, structured_outputs=constraint)
    [output] = llm.generate("Switch it on.", params)
    assert (output.error, output.finish_reason) == (None, "stop")
    assert re.fullmatch(expected, output.text, re.DOTALL)


def test_unknown_parser(demo):
    with pytest.raises(UserError, match="tool_call_parser must be one of auto, .* got 'xml'"):
        LLM(demo, kv_cache_bytes=2**23, tool_call_parser="xml")


@pytest.mark.parametrize("family", TEMPLATES)
def test_reasoning_before_a_call(family):
    pytest.importorskip("llguidance")
    tokenizer = byte_tokenizer(family, ["<think>", "</think>"])
    compiler = GrammarCompiler(tokenizer, len(tokenizer))
    call = write_calls(family, [("switch", {"on": True})])
    for state, text, is_allowed in [
        (ThinkingState.OPEN, f"{call}?</think>\n\n{call}", True),
        (ThinkingState.POSSIBLE, f"<think>Hm.</think>\n\n{call}", True),
        (ThinkingState.POSSIBLE, call, True),
        (ThinkingState.OPEN, call, False),
        (ThinkingState.NONE, f"<think>Hm.</think>\n\n{call}", False),
    ]:
        matcher = compiler.compile(ToolCalls([TOOL], "required"), state).matcher
        tokens = tokenizer.encode(text)
        is_consumed = matcher.try_consume_tokens(tokens) == len(tokens)
        assert (is_consumed and matcher.is_accepting()) == is_allowed, text


@pytest.mark.parametrize("family", TEMPLATES)
def test_call_ids_in_the_prompt(family):
    tokenizer = byte_tokenizer(family)
    function = {"name": "switch", "arguments": json.dumps({"on": True})}
    messages = [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_0123456789abcdef", "function": function}],
        },
        {"role": "tool", "tool_call_id": "call_0123456789abcdef", "content": "on"},
    ]
    text = render_chat(tokenizer, messages, variables={"bos_token": "", "eos_token": ""})
    assert "call_0123456789abcdef" not in text
    assert text.count("789abcdef") == (2 if family.startswith("mistral") else 0)
    assert messages[2]["tool_call_id"] == "call_0123456789abcdef", (
        "render_chat must not modify its messages"
    )
