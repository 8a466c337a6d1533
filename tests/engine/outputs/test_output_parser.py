"""Calls in and after reasoning; the tests of day 5.5 and of tool calls cover the rest."""

import json
from types import SimpleNamespace

import pytest

from tiny_llm.engine.outputs.output_parser import (
    OutputParser,
    ReasoningDelta,
    TextDelta,
    without_reasoning,
)
from tiny_llm.engine.tool_calls.format import MalformedCallError, ToolCallDelta, ToolCallOptions
from tiny_llm.engine.tool_calls.json_calls import HermesFormat
from tiny_llm.engine.tool_calls.qwen3_coder import Qwen3CoderFormat

each_size = pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])

XML_CALL = (
    "<tool_call>\n<function=f>\n<parameter=a>\nx</think>\n</parameter>\n</function>\n</tool_call>"
)
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>'


def parse(text, size, tool_calls, reasoning_open=False):
    """Parses text in chunks of `size`.

    Returns (type, text) of merged text deltas, and (ToolCallDelta, name, arguments) of calls.
    """
    parser = OutputParser(True, reasoning_open, tool_calls)
    parts = [part for i in range(0, len(text), size) for part in parser.feed(text[i : i + size])]
    parsed, ids = [], []
    for part in parts + parser.finish():
        is_call = isinstance(part, ToolCallDelta)
        fields = [ToolCallDelta, part.name, part.arguments] if is_call else [type(part), part.text]
        if part.id in ids if is_call else parsed and parsed[-1][0] is type(part):
            parsed[-1][-1] += fields[-1]
        else:
            parsed.append(fields)
        ids += [part.id] if is_call else []
    return [
        (*fields[:-1], json.loads(fields[-1]) if fields[0] is ToolCallDelta else fields[-1])
        for fields in parsed
    ]


def test_call_without_tools_is_text():
    assert parse(CALL, 5, tool_calls=None) == [(TextDelta, CALL)]


@each_size
@pytest.mark.parametrize("is_stream", [False, True])
def test_call_after_reasoning(size, is_stream):
    options = ToolCallOptions(HermesFormat(), is_stream=is_stream)
    expected = [(ReasoningDelta, "a"), (ToolCallDelta, "f", {"a": "x"})]
    assert parse("<think>\na\n</think>\n\n" + CALL, size, options) == expected


class _RejectingFormat(HermesFormat):
    """Rejects each call without reading any text."""

    def parse(self, source, functions):
        raise MalformedCallError
        yield


@each_size
def test_call_rejected_without_reading_is_content(size):
    options = ToolCallOptions(_RejectingFormat(), is_stream=True)
    for text in (CALL, "a\n" + CALL):
        actual = parse(text, size, tool_calls=options)
        assert actual == [(TextDelta, text)], f"expected {text!r} as content, got {actual}"


INNER = (ToolCallDelta, "f", {"a": "x</think>"})


@each_size
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hm.\n</think>\n\nYes.", [(ReasoningDelta, "Hm."), (TextDelta, "Yes.")]),
        (f"Hm. <\n\n{XML_CALL}\n{XML_CALL}", [(ReasoningDelta, "Hm. <"), INNER, INNER]),
        (f"\n{XML_CALL}\nDone.", [INNER, (TextDelta, "Done.")]),
        (
            f"A <tool_call> or <tool_call>\n</think>\n\n{XML_CALL}",
            [(ReasoningDelta, "A <tool_call> or <tool_call>"), INNER],
        ),
        (
            "<tool_call>\n<functions> <function=f> </think>Yes.",
            [(ReasoningDelta, "<tool_call>\n<functions> <function=f>"), (TextDelta, "Yes.")],
        ),
        ("Hm. <tool_call>\n<func", [(ReasoningDelta, "Hm. <tool_call>\n<func")]),
    ],
)
def test_reasoning_opened_by_the_prompt(text, expected, size, is_stream):
    options = ToolCallOptions(Qwen3CoderFormat(), is_stream=is_stream)
    assert parse(text, size, options, reasoning_open=True) == expected


HARMONY = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "<think>\nHm.\n</think>\n\nYes."),
        ("{{ '<think>' }}", "Hm.\n</think>\n\nYes."),  # open in the prompt
        ("<|channel>thought", "<|channel>thought\nHm.<channel|>Yes."),
        ("[THINK]", "[THINK]Hm.[/THINK]Yes."),
        ("<|channel|><|message|>", f"{HARMONY}Yes."),
        (None, "Yes.\n"),
    ],
)
def test_message_without_reasoning(template, message):
    tokenizer = SimpleNamespace(chat_template=template)
    assert without_reasoning(message, tokenizer) == "Yes."
