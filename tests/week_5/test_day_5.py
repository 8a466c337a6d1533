"""Week 5, day 5, optional: parser of reasoning and calls, thinking budget."""

from itertools import combinations
from typing import Any

import pytest

from tests.support import assert_equal
from tiny_llm.engine.outputs.output_parser import (
    OutputParser,
    ParsedDelta,
    ReasoningDelta,
    TextDelta,
    tag_prefix_length,
)
from tiny_llm.engine.structured_output.thinking_budget import ThinkingBudget, thinking_tokens
from tiny_llm.engine.tool_calls.format import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    MalformedCallError,
    TextSource,
    ToolCallDelta,
    ToolCallFormat,
    ToolCallOptions,
)
from tiny_llm.engine.tool_calls.json_calls import HermesFormat

pytestmark = pytest.mark.usefixtures("on_cpu")

TOOLS = ToolCallOptions(HermesFormat(), is_stream=True)
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 17, "b": [25]}}\n</tool_call>'


def chunkings(text: str) -> list[list[str]]:
    """Splits of a text: one chunk, single characters, cuts at one or two places."""
    found = [[text], list(text)]
    found += [[text[:cut], text[cut:]] for cut in range(1, len(text))]
    places = range(1, len(text), 1 + len(text) // 16)
    return found + [[text[:a], text[a:b], text[b:]] for a, b in combinations(places, 2)]


def merged(deltas: list[ParsedDelta]) -> list[tuple[str, str]]:
    """Deltas as (kind, text), with adjacent deltas of a kind joined."""
    found: list[tuple[str, str]] = []
    for delta in deltas:
        if isinstance(delta, ToolCallDelta):
            kind, text = f"call of {delta.name}", delta.arguments
            is_new = delta.is_new
        else:
            kind = "reasoning" if isinstance(delta, ReasoningDelta) else "content"
            text, is_new = delta.text, not (found and found[-1][0] == kind)
        if is_new:
            found.append((kind, text))
        else:
            found[-1] = found[-1][0], found[-1][1] + text
    return found


def assert_parsed(text: str, expected: list[tuple[str, str]], **options: Any) -> None:
    settings = {"thinking_enabled": True, "reasoning_open": False, "tool_calls": None} | options
    for chunks in chunkings(text):
        parser = OutputParser(**settings)
        deltas = [delta for chunk in chunks for delta in parser.feed(chunk)]
        assert_equal(merged(deltas + parser.finish()), expected, str(chunks))


def assert_calls_parsed(text: str, expected: list[tuple[str, str]]) -> None:
    assert_parsed(text, expected, thinking_enabled=False, tool_calls=TOOLS)


@pytest.mark.parametrize(
    ("text", "tags", "expected"),
    [
        ("Hello", ("</think>",), 0),
        ("a <", ("</think>",), 1),
        ("a </thin", ("</think>",), 6),
        ("a </thin ", ("</think>",), 0),
        ("a <<", ("<tool>",), 1),
        ("a <T", ("<tool>",), 0),
        ("<tool", ("<tool>",), 5),
        ("", ("<tool>",), 0),
        ("5 ]", ("[CALL]",), 0),
        ("see [C", ("<tool>", "[CALL]"), 2),
        ("x aab", ("aabaac",), 3),  # "aab" is the longest prefix that ends the text
        ("x aabaa", ("aabaac",), 5),  # "aabaa", not "aa", is the longest prefix that ends the text
        ("<a", ("<", "<a>"), 2),
    ],
)
def test_task_1_length_of_a_tag_prefix(text, tags, expected):
    actual = tag_prefix_length(text, tags)
    assert actual == expected, (
        f"{text!r} before one of {tags}: expected to hold back {text[len(text) - expected :]!r}, "
        f"got {text[len(text) - actual :]!r}"
    )


def test_task_1_prefixes_equal_definition():
    tags = ("<tool_call>", "<tool", "[TOOL_CALLS]", "[[x")
    for tag in tags:
        for length in range(len(tag)):
            for before in ("", "<", "[", "a b", "<to<"):
                text = before + tag[:length]
                ends = [text[n:] for n in range(len(text) + 1)]
                prefixes = [end for end in ends if any(tag.startswith(end) for tag in tags)]
                expected = max(len(end) for end in prefixes if end not in tags)
                actual = tag_prefix_length(text, tags)
                if not any(complete in text for complete in tags):
                    assert actual == expected, f"{text!r}: expected {expected}, got {actual}"


def feed_all(parser: OutputParser, *chunks: str) -> list[list[ParsedDelta]]:
    return [parser.feed(chunk) for chunk in chunks]


def test_task_1_text_is_emitted_as_early_as_possible():
    parser = OutputParser(False, False, TOOLS)
    actual = feed_all(parser, "Hello", " wor<", "b>", " 1 <tool_box>", " ")
    # `<` is held back, because it may start a tag; so is the last space, since whitespace before a
    # tag is dropped.
    texts = ["Hello", " wor", "<b>", " 1 <tool_box>"]
    assert_equal(actual, [*([TextDelta(text)] for text in texts), []])
    assert parser.feed("x") == [TextDelta(" x")], "expected the held-back space to precede the text"
    for text in ("ends with <tool", "a </tool_call> b <", "<<tool_cal"):
        assert_calls_parsed(text, [("content", text)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", [("reasoning", "Hm."), ("content", "Yes.")]),
        (" \n<think>Hm. So.</think>Yes.", [("reasoning", "Hm. So."), ("content", "Yes.")]),
        ("<think>\n\n</think>\n\nYes.", [("content", "Yes.")]),
        ("<think>\ncut of", [("reasoning", "cut of")]),
        ("<think>a </thin b</think>c", [("reasoning", "a </thin b"), ("content", "c")]),
        ("a <think> b", [("content", "a <think> b")]),
        ("<thinking> b", [("content", "<thinking> b")]),
        ("Yes.", [("content", "Yes.")]),
        ("  Yes.", [("content", "  Yes.")]),
        ("<thi", [("content", "<thi")]),
        ("", []),
    ],
)
def test_task_2_reasoning_and_content(text, expected):
    assert_parsed(text, expected)


def test_task_2_other_tags_and_open_reasoning():
    text = "<seed:think>Hm </think>.</seed:think>Yes."
    expected = [("reasoning", "Hm </think>."), ("content", "Yes.")]
    assert_parsed(text, expected, think_tags=("<seed:think>", "</seed:think>"))
    expected = [("reasoning", "Hm."), ("content", "Yes </think>.")]
    assert_parsed("Hm.\n</think>\n\nYes </think>.", expected, reasoning_open=True)


def test_task_2_start_waits_while_the_text_may_be_a_tag():
    parser = OutputParser(True, False)
    actual = feed_all(parser, "<th", "ink>\nHm", " then.\n", "</thi", "nk>\n\nY", "es")
    expected: list[list[ParsedDelta]] = [
        [],
        [ReasoningDelta("Hm")],
        [ReasoningDelta(" then.")],  # the newline is held back, because it may precede the end tag
        [],
        [TextDelta("Y")],
        [TextDelta("es")],
    ]
    assert actual == expected, f"expected {expected}, got {actual}"
    parser = OutputParser(True, False)
    actual = feed_all(parser, "<th", "ree>")
    assert_equal(actual, [[], [TextDelta("<three>")]], "nothing, then the whole text")


def drive(read: Any, source: TextSource, *chunks: str) -> list[Any]:
    """Feeds a parsing generator; returns its yields, then its result or error."""
    found: list[Any] = []
    remaining = list(chunks)
    while True:
        try:
            event = next(read)
        except StopIteration as end:
            return [*found, end.value]
        except (MalformedCallError, AttributeError) as error:
            return [*found, type(error).__name__]
        found.append(event)
        if event is None and remaining:
            source.buffer += remaining.pop(0)
        elif event is None:
            assert not source.has_ended, "expected no wait after the end of the output"
            source.has_ended = True


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (["<a>x"], ["<a>"]),
        (["[b]"], ["[b]"]),
        (["x<a>"], [""]),
        (["<b>"], [""]),
        (["", "<", "a", ">"], [None, None, None, "<a>"]),
        (["<", "b"], [None, ""]),
        (["[", "b]"], [None, "[b]"]),
        (["<a"], [None, ""]),  # the output ends after this chunk
    ],
    ids=str,
)
def test_task_3_peek(chunks, expected):
    source = TextSource(chunks[0])
    actual = drive(source.peek("<a>", "[b]"), source, *chunks[1:])
    assert actual == expected, f"expected {expected} (None: wait for more text), got {actual}"
    assert source.buffer == "".join(chunks), "expected peeking not to remove text from the buffer"


def events(*chunks: str, tool_format: ToolCallFormat | None = None) -> list[Any]:
    source = TextSource(chunks[0])
    parsed = (tool_format or HermesFormat()).parse(source, {})
    return [event for event in drive(parsed, source, *chunks[1:]) if event is not None]


def test_task_3_events_of_a_call():
    start = '<tool_call>\n{"name": "add", "arguments": {"a": '
    actual = events(start, "17, ", '"b": [25', "]}", "}\n</tool", "_call>")
    arguments = map(ArgumentsDelta, ['{"a": ', "17, ", '"b": [25', "]}"])
    assert_equal(actual, [CallStart("add"), *arguments, CallEnd()], "an event for each chunk")


def test_task_3_whitespace_and_end_of_the_output():
    for before in ("\n", " \n\n"):
        actual = events(f"{before}<tool_call>", '{"name": "add", "arguments": {}}')
        expected = [CallStart("add"), ArgumentsDelta("{}"), CallEnd()]
        assert_equal(actual, expected, f"a call after {before!r}, which must be skipped")
    actual = events('<tool_call>{"name": "f", "arguments": {"a": ', "[1")
    arguments = ArgumentsDelta('{"a": '), ArgumentsDelta("[1")
    assert_equal(actual, [CallStart("f"), *arguments, "MalformedCallError"])


def test_task_3_call_does_not_depend_on_chunking():
    call = ("call of add", '{"a": 17, "b": [25]}')
    assert_calls_parsed(f"Well.\n{CALL}", [("content", "Well."), call])
    for text in (f"{CALL}\n{CALL}", f"{CALL[:-13]}\n{CALL}\n"):  # with and without the end tag
        assert_calls_parsed(text, [call] * 2)
    odd = CALL.replace("[25]", '"</tool_call> } ]"')
    assert_calls_parsed(odd, [("call of add", '{"a": 17, "b": "</tool_call> } ]"}')])


@pytest.mark.parametrize("text", ["no", '["add"]', "</tool_call>"])
def test_task_3_only_an_object_is_a_call(text):
    actual = events("<tool_call>", text)
    expected = ["MalformedCallError"]
    assert actual == expected, f"{text!r} after the tag: expected {expected}, got {actual}"


@pytest.mark.parametrize(
    "text", ["<tool_call>no</tool_call>", '<tool_call>["add"]</tool_call>', "<tool_call>"]
)
def test_task_3_other_text_is_content(text):
    assert_calls_parsed(text, [("content", text)])


def test_task_3_invalid_and_cut_calls():
    text = CALL.replace("17", "yes")
    expected = [("call of add", '{"a": '), ("content", text[text.index("yes") :])]
    assert_calls_parsed(text, expected)
    expected = [("call of add", '{"a": 17, "b": [25]}')]
    for cut in range(len(CALL) - len("\n</tool_call>"), len(CALL)):
        assert_calls_parsed(CALL[:cut], expected)


def test_task_3_cut_call_is_a_prefix_of_the_call():
    arguments = '{"a": 17, "b": [25]}'
    begin = CALL.index(arguments)
    for cut in range(begin + 1, begin + len(arguments)):
        parser = OutputParser(False, False, TOOLS)
        actual = merged(parser.feed(CALL[:cut]))
        expected = [("call of add", CALL[begin:cut])]
        assert actual == expected, f"{CALL[:cut]!r}: expected {expected} immediately, got {actual}"
        rest = merged(parser.finish(is_truncated=True))
        assert rest == [], f"{CALL[:cut]!r}: expected no further deltas at the end, got {rest}"
        assert parser.has_incomplete_call, "expected the call to be incomplete"


START, END = 8, 9


@pytest.mark.parametrize(
    ("output", "draft_tokens", "in_thinking", "expected"),
    [
        ([], [], False, None),
        ([1, 2, 3], [], False, None),  # no reasoning
        ([START, 1], [], False, None),
        ([START, 1, 2], [], False, END),
        ([START, 1, 2, 3], [], False, END),  # the grammar did not allow END before
        ([START, START, 1], [], False, None),  # the tags do not count
        ([START, START, 1, 2], [], False, END),
        ([START, 1, END, START], [], False, None),
        ([START], [1], False, None),
        ([START], [1, 2], False, END),
        ([START, 1], [2, END], False, None),  # a draft token, END, ends the reasoning
        ([START, 1, 2, END, 3, 4], [], False, None),
        # The tokens of both reasoning blocks count.
        ([START, 1, END, 5, 5, START], [2], False, END),
        ([1, 2], [], True, END),
        ([1], [], True, None),
    ],
)
def test_task_4_forced_token(output, draft_tokens, in_thinking, expected):
    prompt = [START, 1, 1, 1]  # `in_thinking`: whether the prompt's <think> is still open
    budget = ThinkingBudget(len(prompt), 2, START, END, in_thinking)
    for _ in range(2):  # repeated, because queries must be idempotent
        actual = budget.forced_token([*prompt, *output], draft_tokens)
        assert_equal(actual, expected, f"budget 2, {output} + {draft_tokens}")


def test_task_4_budget_of_zero_and_rejected_draft_tokens():
    budget = ThinkingBudget(1, 0, START, END, in_thinking=False)
    assert budget.forced_token([1], []) is None, "expected no forced token before <think>"
    assert_equal(budget.forced_token([1, START], []), END, f"{END} right after <think>")
    budget, tokens = ThinkingBudget(1, 3, START, END, in_thinking=True), [0]
    for draft_tokens in ([1], [1, 1], [END, 5], []):  # all rejected
        budget.forced_token(tokens, draft_tokens)
    for count in range(3):
        actual = budget.forced_token(tokens, [])
        assert actual is None, f"after {count} tokens of 3: expected None, got {actual}"
        budget.forced_token(tokens, [1])  # rejected, too
        tokens.append(7)
    for _ in range(2):  # repeated, because queries must be idempotent
        actual = budget.forced_token(tokens, [])
        assert actual == END, f"after 3 tokens of 3: expected {END}, got {actual}"


def test_task_4_model_thinks_within_its_budget(demo):
    from tiny_llm import LLM, SamplingParams

    llm = LLM(demo, kv_cache_bytes=2**23)
    start, end = thinking_tokens(llm.tokenizer) or (0, 0)
    params = SamplingParams(temperature=0, max_tokens=24, thinking_token_budget=4)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    [output] = llm.generate(question, params, enable_thinking=True)
    assert output.error is None, output.error
    assert output.token_ids[0] == start
    actual = output.token_ids.index(end) if end in output.token_ids else None
    assert actual == 5, f"expected </think> after <think> and 4 tokens, at 5, got {actual}"
    thought, _, answer = output.text.partition("</think>")
    assert "Paris" in answer, f"expected the answer after {thought!r}, got {answer!r}"
