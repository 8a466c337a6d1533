"""An answer's text split into thoughts, text and tool calls, however it is cut."""

import json

import pytest

from tests.server import conftest  # noqa: F401  (skips where the libraries are missing)
from tiny_llm.server.answer_parser import AnswerParser, Said, Thought, ToolCall

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x"}}\n</tool_call>'


def parse(text, size, may_think=True, in_thought=False, may_call=True):
    """What is found if the text comes `size` characters at a time: (kind, text or call)."""
    parser = AnswerParser(may_think, in_thought, may_call)
    parts = []
    for start in range(0, len(text), size):
        parts += parser.feed(text[start : start + size])
    found = []
    for part in parts + parser.finish():
        if isinstance(part, ToolCall):
            found.append((ToolCall, part.name, json.loads(part.arguments)))
        elif found and found[-1][0] is type(part):
            found[-1] = (type(part), found[-1][1] + part.text)
        else:
            found.append((type(part), part.text))
    return found


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("Hello <b> world", [(Said, "Hello <b> world")]),
        ("<think>\nHm. So.\n</think>\n\nYes.", [(Thought, "Hm. So."), (Said, "Yes.")]),
        ("<think>\n\n</think>\n\nYes.", [(Said, "Yes.")]),
        ("<think>\ncut of", [(Thought, "cut of")]),
        ("a <think> b", [(Said, "a <think> b")]),
        ("Let me see.\n" + CALL, [(Said, "Let me see."), (ToolCall, "f", {"a": "x"})]),
        (CALL + "\n" + CALL, [(ToolCall, "f", {"a": "x"})] * 2),
        (
            "<think>\na\n</think>\n\n" + CALL,
            [(Thought, "a"), (ToolCall, "f", {"a": "x"})],
        ),
        (
            CALL.replace('"x"', r'"</tool_call> \" }{"'),
            [(ToolCall, "f", {"a": '</tool_call> " }{'})],
        ),
        (CALL[:30], [(Said, CALL[:30])]),
        (CALL[:-3], [(Said, CALL[:-3])]),
        ("<tool_call>no</tool_call>", [(Said, "<tool_call>no</tool_call>")]),
        ('<tool_call>{"a": 1}</tool_call>', [(Said, '<tool_call>{"a": 1}</tool_call>')]),
        ("ends with <tool", [(Said, "ends with <tool")]),
    ],
)
def test_parts(text, expected, size):
    assert parse(text, size) == expected


def test_what_the_prompt_has_begun():
    found = parse("Hm.\n</think>\n\nYes.", 2, in_thought=True)
    assert found == [(Thought, "Hm."), (Said, "Yes.")]


def test_without_tools_a_call_is_text():
    assert parse(CALL, 5, may_call=False) == [(Said, CALL)]


def test_text_is_given_out_as_soon_as_it_is_certain():
    parser = AnswerParser(True, False, True)
    assert parser.feed("Hello") == [Said("Hello")]
    assert parser.feed(" wor<") == [Said(" wor")]
    assert parser.feed("b>") == [Said("<b>")]


def pieces(text, size):
    """What a stream tells: texts, and for each call its name and the pieces of its arguments."""
    parser = AnswerParser(True, False, True, in_pieces=True)
    parts = []
    for start in range(0, len(text), size):
        parts += parser.feed(text[start : start + size])
    texts, calls = "", {}
    for part in parts + parser.finish():
        if isinstance(part, Said):
            texts += part.text
        else:
            assert part.is_new == (part.id not in calls)
            calls.setdefault(part.id, [part.name]).append(part.arguments)
    return texts, [(name, *filter(None, arguments)) for name, *arguments in calls.values()]


LONG_CALL = CALL.replace('"x"', r'"</tool_call> \" }{ é", "b": [1, {"c": -2.5e3}, null]')


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_call_is_told_in_pieces(size):
    text, (first, second) = pieces(f"Well. {LONG_CALL}\n{CALL}\n", size)
    assert text.strip() == "Well."
    assert first[0] == second[0] == "f"
    assert json.loads("".join(first[1:])) == json.loads(LONG_CALL[12:-12])["arguments"]
    assert json.loads("".join(second[1:])) == {"a": "x"}
    assert size > 7 or len(first) > 5


@pytest.mark.parametrize("cut", range(1, len(LONG_CALL)))
def test_a_call_that_is_cut_off_is_the_beginning_of_one(cut):
    whole = LONG_CALL[LONG_CALL.index('{"a"') : -13]
    text, calls = pieces(LONG_CALL[:cut], 3)
    if calls:
        ((name, *arguments),) = calls
        assert (name, text) == ("f", "")
        assert whole.startswith("".join(arguments))
    else:
        assert text == LONG_CALL[:cut]


def test_arguments_that_cannot_be_json_are_text_from_there_on():
    text, ((_, *arguments),) = pieces('<tool_call>{"name": "f", "arguments": {"a": yes}}', 1)
    assert "".join(arguments) == '{"a": '
    assert text == "yes}}"


@pytest.mark.parametrize(
    "call",
    [
        '{"arguments": {"a": "x"}, "name": "f"}',
        '{"name": "f", "arguments": {"a": "x"}, "why": "?"}',
    ],
)
def test_calls_in_another_order(call):
    found = pieces(f"<tool_call>{call}</tool_call> Done.", 2)
    assert (found[0], found[1][0][0]) == ("Done.", "f")
    assert json.loads("".join(found[1][0][1:])) == {"a": "x"}
