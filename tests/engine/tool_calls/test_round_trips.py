"""Round trips: calls rendered by a template parse back, however split."""

import json
import random

import pytest

from tests.engine.tool_calls.support import (
    format_of,
    parse,
    parsed_arguments,
    random_sizes,
    random_tool,
    write_calls,
)
from tests.engine.tool_calls.templates import TEMPLATES

FAMILIES = list(TEMPLATES)


def random_case(family, seed):
    rng = random.Random(f"{family} {seed}")
    tools = {name: random_tool(rng, name) for name in ("get_weather", "write")}
    names = rng.choices(list(tools), k=1 if family == "llama3" else rng.randrange(1, 4))
    calls = [(name, tools[name][1](rng)) for name in names]
    content = "" if family in ("llama3", "mistral-list") else rng.choice(["", "Well {x}: <b>."])
    text = write_calls(family, calls, content)
    return rng, [tool for tool, _ in tools.values()], calls, content, text


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(12))
def test_rendered_calls_parse_back(family, seed):
    rng, tools, calls, content, text = random_case(family, seed)
    expected, whole, parser = parse(format_of(family), text, tools)
    assert (expected, parsed_arguments(whole)) == (content, calls), text
    assert not parser.has_incomplete_call
    for _ in range(4):
        for is_stream in (False, True):
            actual = parse(format_of(family), text, tools, random_sizes(rng), is_stream)
            assert actual[:2] == (content, whole)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_split(family):
    _, tools, _, content, text = random_case(family, 3)
    _, whole, _ = parse(format_of(family), text, tools)
    for split in range(1, len(text)):
        actual = parse(format_of(family), text, tools, (split, 10**9), is_stream=split % 2 == 1)
        assert actual[:2] == (content, whole), split
    text = f"{text}\nDone."
    for size in (1, 2, 3):
        for is_stream in (False, True):
            actual, calls, _ = parse(format_of(family), text, tools, (size,), is_stream)
            assert (actual, calls) == (f"{content}Done.", whole)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(6))
def test_truncated_calls(family, seed):
    """A truncated call is text in a full response, a call's prefix in a stream."""
    rng, tools, _, content, text = random_case(family, seed)
    _, whole, _ = parse(format_of(family), text, tools)
    for cut in rng.sample(range(len(text)), min(25, len(text))):
        sizes = random_sizes(rng)
        actual, complete, _ = parse(format_of(family), text[:cut], tools, is_truncated=True)
        again = parse(format_of(family), text[:cut], tools, sizes, is_truncated=True)
        assert again[:2] == (actual, complete)
        assert complete == whole[: len(complete)]
        assert text[:cut].endswith(actual[len(content) :])
        _, streamed, parser = parse(
            format_of(family), text[:cut], tools, sizes, is_stream=True, is_truncated=True
        )
        assert streamed[: len(complete)] == complete
        if len(streamed) > len(complete):
            assert parser.has_incomplete_call
            name, arguments = streamed[-1]
            assert name == whole[len(complete)][0]
            assert whole[len(complete)][1].startswith(arguments)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(6))
def test_parsing_malformed_calls_does_not_depend_on_the_split(family, seed):
    rng, tools, _, _, text = random_case(family, seed)
    for _ in range(12):
        start = rng.randrange(len(text))
        malformed = text[:start] + rng.choice(["", "x", "<", "\n", '"']) + text[start + 2 :]
        for is_stream in (False, True):
            expected = parse(format_of(family), malformed, tools, is_stream=is_stream)[:2]
            actual = parse(format_of(family), malformed, tools, random_sizes(rng), is_stream)[:2]
            assert actual == expected, malformed


@pytest.mark.parametrize("family", FAMILIES)
def test_text_without_calls(family):
    _, tools, _, _, _ = random_case(family, 0)
    for text in [
        "Hello.",
        "a [b] {c} <d>",
        '{"age": 5}',
        '{"name": "Bob", "age": 5} x',
        "<tool",
        "{",
    ]:
        for is_stream in (False, True):
            assert parse(format_of(family), text, tools, (1,), is_stream)[:2] == (text, [])


@pytest.mark.parametrize("family", FAMILIES)
def test_calls_in_a_structured_output_are_text(family):
    _, tools, _, _, text = random_case(family, 1)
    answer = json.dumps({"says": text})
    for is_stream in (False, True):
        actual = parse(
            format_of(family), answer, tools, (3,), is_stream, has_structured_content=True
        )
        assert actual[:2] == (answer, [])
