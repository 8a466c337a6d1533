"""Tool call formats in the engine: `tool_call_parser`, reasoning, call ids."""

import json
import re

import pytest

from tests.engine.support import accepts
from tests.engine.tool_calls.support import TAGS, byte_tokenizer, write_calls
from tests.engine.tool_calls.templates import TEMPLATES
from tests.support import function_tool, object_schema
from tiny_llm import LLM, SamplingParams, StructuredOutputs, ToolCalls
from tiny_llm.engine.inputs.chat_template import render_chat
from tiny_llm.engine.structured_output.compiler import GrammarCompiler
from tiny_llm.engine.structured_output.grammar import ThinkingState

TOOL = function_tool("switch", object_schema(on={"type": "boolean"}))


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


@pytest.mark.parametrize("family", TEMPLATES)
def test_reasoning_before_a_call(family):
    pytest.importorskip("llguidance")
    tokenizer = byte_tokenizer(family, ["<think>", "</think>"])
    compiler = GrammarCompiler(tokenizer, len(tokenizer))
    call = write_calls(family, [("switch", {"on": True})])
    ends_reasoning = family in ("qwen3.5", "qwen3-coder")
    for state, text, is_allowed in [
        (ThinkingState.OPEN, f"{call}?</think>\n\n{call}", not ends_reasoning),
        (ThinkingState.POSSIBLE, f"<think>Hm.</think>\n\n{call}", True),
        (ThinkingState.POSSIBLE, call, True),
        (ThinkingState.OPEN, call, ends_reasoning),
        (ThinkingState.NONE, f"<think>Hm.</think>\n\n{call}", False),
    ]:
        matcher = compiler.compile(ToolCalls([TOOL], "required"), state).matcher
        assert accepts(matcher, tokenizer, text) == is_allowed, text


@pytest.mark.parametrize("tags", [TAGS, ["<think>", "</think>"], []])
@pytest.mark.parametrize("choice", ["auto", "required", "structured"])
def test_call_inside_the_reasoning(choice, tags):
    pytest.importorskip("llguidance")
    tokenizer = byte_tokenizer("qwen3.5", tags)
    compiler = GrammarCompiler(tokenizer, len(tokenizer))
    call = write_calls("qwen3.5", [("switch", {"on": True})])
    constraint = ToolCalls([TOOL], "required" if choice == "required" else "auto")
    if choice == "structured":
        constraint = ToolCalls([TOOL], response_constraint=StructuredOutputs(choice=["yes"]))
    for text, is_allowed in [
        (call, True),
        (f"Hm. {call}\n{call}", True),
        (f"A <tool_call>? <tool_call>\n<func</think>\n\n{call}", True),
        (f"Hm.</think>\n\n{call}", True),
        ("Hm.</think>\n\nyes", choice != "required"),
        (f"{call}</think>", choice == "auto" and not tags),
        (f"{call[:-20]}</think>", False),
        ("Hm. <tool_call>\n<function=other>", False),
        ("Hm.", False),
    ]:
        starts = {ThinkingState.OPEN: "", ThinkingState.POSSIBLE: "<think>"}
        if not tags:  # as text, a possible <think> may also be the start of the content
            del starts[ThinkingState.POSSIBLE]
        for state, start in starts.items():
            matcher = compiler.compile(constraint, state).matcher
            assert accepts(matcher, tokenizer, start + text) == is_allowed, text


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
