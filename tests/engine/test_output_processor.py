"""`StopChecker`: stop strings across tokens, and buffering of their prefixes."""

from collections import deque
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import ByteDetokenizer
from tiny_llm import SamplingParams
from tiny_llm.engine.outputs.output_processor import OutputProcessor, ReasoningTokens, StopChecker
from tiny_llm.engine.scheduling.request import ChunkOutput, CompletionOutput


def emitted_texts(text: str, *stops: str, **options) -> tuple[list[str], CompletionOutput]:
    """Text emitted after each byte, up to a stop string or the end of `text`."""
    output = CompletionOutput(0)
    checker = StopChecker(output, ByteDetokenizer(), stops, **options)
    pieces = []
    for byte in text.encode():
        stopped = checker.add_token(byte)
        pieces.append(checker.take_text())
        if stopped:
            break
    checker.finish()
    pieces.append(checker.take_text())
    return pieces, output


def test_possible_stop_strings_and_incomplete_characters_are_buffered():
    assert emitted_texts("a<|x|>", "<|end|>")[0] == ["a", "", "", "<|x", "|", ">", ""]
    assert emitted_texts("é!")[0] == ["", "é", "!", ""]
    output = StopChecker(CompletionOutput(0), ByteDetokenizer(), ())
    output.add_token("é".encode()[0])
    assert output.take_text() == ""
    output.finish()
    assert output.take_text() == "\ufffd"


@pytest.mark.parametrize(("min_tokens", "expected"), [(0, ("", "\ufffd")), (1, ("\ufffd", None))])
def test_stop_string_completed_at_the_end(min_tokens, expected):
    output = CompletionOutput(0)
    checker = StopChecker(output, ByteDetokenizer(), ("\ufffd",), min_tokens)
    assert not checker.add_token("é".encode()[0])
    stop_string = checker.finish()
    assert (checker.take_text(), stop_string) == expected


@pytest.mark.parametrize(
    ("stop", "expected"), [("\ufffd", ("stop", "\ufffd")), ("x", ("length", None))]
)
def test_stop_string_completed_at_the_last_token_is_the_reason(stop, expected):
    params = SamplingParams(stop=[stop])
    request = SimpleNamespace(params=params, max_tokens=1, num_output_tokens=0)
    output = CompletionOutput(0)
    processor = OutputProcessor(request, None, output, ByteDetokenizer(), [], deque())
    _, reason = processor.process(ChunkOutput(list("é".encode()[:1])))
    assert (reason, output.stop_reason) == expected


STOPS = st.lists(st.text("abé<", min_size=1, max_size=4), max_size=3)


@given(st.text("abé<", max_size=30), STOPS)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_text_ends_before_the_first_stop_string(text, stops):
    pieces, output = emitted_texts(text, *stops)
    starts = {stop: text.find(stop) for stop in stops if stop in text}
    # The first match to complete ends the text; ties go to the earliest start.
    first = min(starts, key=lambda stop: (starts[stop] + len(stop), starts[stop]), default=None)
    assert output.text == "".join(pieces) == (text if first is None else text[: starts[first]])
    assert output.stop_reason == first


THINK, END_THINK = 2, 3  # ids of the think tokens; every token is one byte


@pytest.mark.parametrize(
    ("text", "is_open", "expected", "stop_reason"),
    [
        ("\x02a.b.\x03c.d", False, "\x02a.b.\x03c", "."),
        ("a.b.\x03c.d", True, "a.b.\x03c", "."),
        ("\n\x02a.\x03c.d", False, "\n\x02a.\x03c", "."),  # whitespace may precede the reasoning
        ("c.\x02a.", False, "c", "."),  # reasoning must come first
        ("c\x02a.", False, "c\x02a", "."),
        ("\x02a.", False, "\x02a.", None),  # truncated reasoning
    ],
)
def test_stop_strings_in_reasoning_are_ignored(text, is_open, expected, stop_reason):
    reasoning = ReasoningTokens(THINK, END_THINK, is_open)
    _, output = emitted_texts(text, ".", reasoning=reasoning)
    assert (output.text, output.stop_reason) == (expected, stop_reason)
