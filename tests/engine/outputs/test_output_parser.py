"""Complete calls, XML calls and calls in reasoning; week 5, day 5 tests the rest."""

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

FULL = ToolCallOptions(HermesFormat())
STREAM = ToolCallOptions(HermesFormat(), is_stream=True)
each_size = pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])

XML_CALL = (
    "<tool_call>\n<function=f>\n<parameter=a>\nx</think>\n</parameter>\n</function>\n</tool_call>"
)
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>'


def deltas(text, size, tool_calls=FULL, reasoning_open=False):
    """Parses text in chunks of `size`.

    Returns (type, text) of merged text deltas, and [name, *pieces of arguments] of calls.
    """
    parser = OutputParser(True, reasoning_open, tool_calls)
    parts = [part for i in range(0, len(text), size) for part in parser.feed(text[i : i + size])]
    actual, calls = [], {}
    for part in parts + parser.finish():
        if isinstance(part, ToolCallDelta):
            if tool_calls.is_stream:
                assert part.is_new == (part.id not in calls)
            if part.id not in calls:
                calls[part.id] = [part.name]
                actual.append(calls[part.id])
            calls[part.id] += filter(None, [part.arguments])
        elif actual and actual[-1][0] is type(part):
            actual[-1] = (type(part), actual[-1][1] + part.text)
        else:
            actual.append((type(part), part.text))
    return actual


def parse(*args, **options):
    """Like `deltas`, but calls are (ToolCallDelta, name, arguments)."""
    return [
        part if isinstance(part, tuple) else (ToolCallDelta, part[0], json.loads("".join(part[1:])))
        for part in deltas(*args, **options)
    ]


@each_size
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Let me see.\n" + CALL, [(TextDelta, "Let me see."), (ToolCallDelta, "f", {"a": "x"})]),
        (CALL + "\n" + CALL, [(ToolCallDelta, "f", {"a": "x"})] * 2),
        (
            "<think>\na\n</think>\n\n" + CALL,
            [(ReasoningDelta, "a"), (ToolCallDelta, "f", {"a": "x"})],
        ),
        (
            CALL.replace('"x"', r'"</tool_call> \" }{"'),
            [(ToolCallDelta, "f", {"a": '</tool_call> " }{'})],
        ),
        (CALL[:30], [(TextDelta, CALL[:30])]),
        (CALL[:-14], [(ToolCallDelta, "f", {"a": "x"})]),
        (CALL[:-3], [(ToolCallDelta, "f", {"a": "x"})]),
        ("<tool_call>no</tool_call>", [(TextDelta, "<tool_call>no</tool_call>")]),
        ('<tool_call>{"a": 1}</tool_call>', [(TextDelta, '<tool_call>{"a": 1}</tool_call>')]),
    ],
)
def test_parsed_parts(text, expected, size):
    assert parse(text, size) == expected


def test_call_without_tools_is_text():
    assert parse(CALL, 5, tool_calls=None) == [(TextDelta, CALL)]


LONG_CALL = CALL.replace('"x"', r'"</tool_call> \" }{ é", "b": [1, {"c": -2.5e3}, null]')


@each_size
def test_call_is_streamed_in_deltas(size):
    text = f"Well. {LONG_CALL}\n{CALL}\n"
    assert parse(text, size, STREAM) == [
        (TextDelta, "Well."),
        (ToolCallDelta, "f", json.loads(LONG_CALL[12:-12])["arguments"]),
        (ToolCallDelta, "f", {"a": "x"}),
    ]
    assert size > 7 or len(deltas(text, size, STREAM)[1]) > 5


@pytest.mark.parametrize("length", range(1, len(LONG_CALL)))
def test_truncated_call_is_a_prefix_of_the_full_call(length):
    complete = LONG_CALL[LONG_CALL.index('{"a"') : -13]
    [part] = deltas(LONG_CALL[:length], 3, STREAM)
    if isinstance(part, tuple):
        assert part == (TextDelta, LONG_CALL[:length])
    else:
        name, *arguments = part
        assert name == "f"
        assert complete.startswith("".join(arguments))


@pytest.mark.parametrize(
    "call",
    [
        '{"arguments": {"a": "x"}, "name": "f"}',
        '{"name": "f", "arguments": {"a": "x"}, "why": "?"}',
    ],
)
def test_calls_with_reordered_fields(call):
    actual = parse(f"<tool_call>{call}</tool_call> Done.", 2, STREAM)
    assert actual == [(ToolCallDelta, "f", {"a": "x"}), (TextDelta, "Done.")]


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
