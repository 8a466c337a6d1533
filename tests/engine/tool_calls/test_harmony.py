"""Harmony, gpt-oss's format: messages on channels, parsed and constrained."""

import json
import random
from functools import cache
from pathlib import Path

import pytest

from tests.engine.support import accepts
from tests.engine.tool_calls.support import END, byte_tokenizer, sample
from tests.support import function_tool, object_schema
from tiny_llm import StructuredOutputs, ToolCalls
from tiny_llm.engine.outputs.output_parser import HarmonyParser, ReasoningDelta, TextDelta
from tiny_llm.engine.structured_output.compiler import GrammarCompiler
from tiny_llm.engine.structured_output.grammar import ThinkingState, initial_thinking_state
from tiny_llm.engine.tool_calls.format import ToolCallOptions
from tiny_llm.engine.tool_calls.harmony import HarmonyFormat
from tiny_llm.engine.tool_calls.registry import AUTO, find_format
from tiny_llm.models.tokenizer.chat_template import DEFAULT_TAGS
from tiny_llm.models.tokenizer.tokenizer import Tokenizer

TEMPLATE = "<|start|>{{ messages[0].content }}<|channel|>final<|message|><|end|>"
TAGS = ["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|call|>", "<|return|>"]
ADD = function_tool("add", object_schema(a={"type": "integer", "minimum": 0, "maximum": 99}))
STOP = function_tool("stop")
THOUGHT = "<|channel|>analysis<|message|>I add.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 5}'
RENDERED_CALL = ' to=functions.add<|channel|>commentary json<|message|>{"a": 5}'
FINAL = "<|channel|>final<|message|>"
ADD_5 = ("add", {"a": 5})


def parse(text, size=1000, is_stream=False, starts_message=True, tools=(ADD,)):
    options = ToolCallOptions(HarmonyFormat(), tools, is_stream) if tools else None
    parser = HarmonyParser(options, starts_message)
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    deltas = [delta for chunk in chunks for delta in parser.feed(chunk)]
    reasoning, content, calls = "", "", {}
    for delta in [*deltas, *parser.finish()]:
        match delta:
            case ReasoningDelta(text):
                reasoning += text
            case TextDelta(text):
                content += text
            case _:
                calls.setdefault(delta.id, [delta.name, ""])[1] += delta.arguments
    parsed = [(name, json.loads(arguments)) for name, arguments in calls.values()]
    return reasoning, content, parsed


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"{THOUGHT}{FINAL}It is  5.", ("I add.", "It is  5.", [])),
        (f"{THOUGHT}{FINAL}It is\n5.\n<|return|>", ("I add.", "It is\n5.", [])),
        (f"{THOUGHT}{CALL}", ("I add.", "", [ADD_5])),
        (f"{THOUGHT}{RENDERED_CALL}<|call|>", ("I add.", "", [ADD_5])),
        (f"{RENDERED_CALL}<|end|><|start|>assistant{CALL}", ("", "", [ADD_5, ADD_5])),
        (f"{CALL}<|call|><|start|>assistant{FINAL}Done.", ("", "Done.", [ADD_5])),
        ("<|channel|>commentary to=functions.stop<|message|>", ("", "", [("stop", {})])),
        (
            f"<|channel|>commentary to=functions.stop<|message|><|call|><|start|>assistant{CALL}",
            ("", "", [("stop", {}), ADD_5]),
        ),
        (f"{THOUGHT}{THOUGHT}{FINAL}5", ("I add.\n\nI add.", "5", [])),
        # Commentary without a recipient is for the user, unlike messages to built-in tools.
        (
            f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{CALL}",
            ("", "I look.", [ADD_5]),
        ),
        ("<|channel|>analysis to=python code<|message|>1 + 1<|call|>", ("1 + 1", "", [])),
        ("<|channel|>analysis<|message|>I ad", ("I ad", "", [])),
        ("<|channel|>analysis<|message|>I add.<|end|><|start|>assis", ("I add.", "", [])),
        (f"{FINAL}a <b> < c", ("", "a <b> < c", [])),
        (f"{FINAL}", ("", "", [])),
        ("Without a header <|", ("", "Without a header <|", [])),
        ("", ("", "", [])),
    ],
)
def test_parsed_messages(text, expected, is_stream, size):
    assert parse(text, size, is_stream) == expected


def test_other_starts():
    assert parse("and 5", starts_message=False) == ("", "and 5", [])
    assert parse(f"{THOUGHT}{CALL}", tools=()) == ('I add.\n\n{"a": 5}', "", [])


@pytest.mark.parametrize("cut", range(1, len(CALL), 3))
def test_truncated_call_is_text(cut):
    reasoning, content, calls = parse(f"{THOUGHT}{CALL}"[: len(THOUGHT) + len(CALL) - cut])
    assert (reasoning, calls) == ("I add.", [])
    assert content.endswith(CALL[:-cut]) or not content


@cache
def compiler(vocabulary):
    tags = TAGS if vocabulary == "tags" else ["<|return|>"]
    backend = byte_tokenizer("qwen3", tags).backend_tokenizer
    tokenizer = Tokenizer(Path(), backend, {}, {backend.token_to_id("<|return|>")})
    tokenizer.chat_template = TEMPLATE
    return GrammarCompiler(tokenizer, len(tokenizer)), tokenizer


def compiled(vocabulary, constraint):
    return compiler(vocabulary)[0].compile(constraint, ThinkingState.MESSAGES).matcher


AUTO_CALLS, REQUIRED = ToolCalls([ADD, STOP]), ToolCalls([ADD, STOP], "required")
NAMED = ToolCalls([ADD, STOP], "required", "stop")
ANSWER = StructuredOutputs(json={"type": "object", "properties": {"a": {"type": "integer"}}})
CALLS_OR_ANSWER = ToolCalls([ADD, STOP], response_constraint=ANSWER)


@pytest.mark.parametrize("vocabulary", ["tags", "bytes"])
@pytest.mark.parametrize(
    ("constraint", "text", "is_accepted"),
    [
        (REQUIRED, f"{THOUGHT}{CALL}", True),
        (REQUIRED, RENDERED_CALL, True),
        (REQUIRED, f"{THOUGHT}{FINAL}5", False),
        (REQUIRED, CALL.replace("5", '"5"'), False),
        (NAMED, CALL, False),
        (NAMED, RENDERED_CALL.replace("add", "stop").replace('"a": 5', ""), True),
        (AUTO_CALLS, f"{THOUGHT}{FINAL}It is 5.", True),
        (AUTO_CALLS, f"{THOUGHT}{CALL}", True),
        (
            AUTO_CALLS,
            f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{CALL}",
            True,
        ),
        (AUTO_CALLS, CALL.replace("add", "other"), False),
        (ANSWER, f'{THOUGHT}{FINAL}{{"a": 5}}', True),
        (ANSWER, f'{FINAL}{{"a": 5}}', True),
        (ANSWER, f"{THOUGHT}{FINAL}5", False),
        (ANSWER, '{"a": 5}', False),
        (CALLS_OR_ANSWER, f'{THOUGHT}{FINAL}{{"a": 5}}', True),
        (CALLS_OR_ANSWER, f"{THOUGHT}{CALL}", True),
        (CALLS_OR_ANSWER, f"{THOUGHT}{FINAL}5", False),
    ],
)
def test_grammar(vocabulary, constraint, text, is_accepted):
    pytest.importorskip("llguidance")
    matcher = compiled(vocabulary, constraint)
    assert accepts(matcher, compiler(vocabulary)[1], text) == is_accepted


@pytest.mark.parametrize("vocabulary", ["tags", "bytes"])
def test_random_outputs_parse(vocabulary):
    pytest.importorskip("llguidance")
    tokenizer = compiler(vocabulary)[1]
    for seed in range(6):
        rng, matcher = random.Random(seed), compiled(vocabulary, REQUIRED)
        start = THOUGHT if seed % 2 else ""
        start += rng.choice([" to=", "<|channel|>commentary to="])
        assert matcher.consume_tokens(tokenizer.encode(start))
        text = start + sample(matcher, tokenizer, rng)
        reasoning, content, calls = parse(text, tools=(ADD, STOP))
        assert (reasoning, content, len(calls)) == ("I add." if seed % 2 else "", "", 1), text


def test_detection():
    assert find_format(AUTO, TEMPLATE).name == "openai"
    state = initial_thinking_state(f"{END}<|start|>assistant", False, DEFAULT_TAGS)
    assert state is ThinkingState.MESSAGES
