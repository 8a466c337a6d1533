"""Random tools and calls, incremental parsing, byte tokenizers with tags."""

import json
import random
import re
from pathlib import Path

import numpy as np
import tokenizers

from tests.engine.tool_calls.templates import TEMPLATES
from tests.support import function_tool, object_schema
from tiny_llm.engine.outputs.output_parser import OutputParser, TextDelta
from tiny_llm.engine.tool_calls.format import ToolCallOptions
from tiny_llm.engine.tool_calls.registry import AUTO, find_format
from tiny_llm.models.tokenizer.chat_template import render_template
from tiny_llm.models.tokenizer.tokenizer import Tokenizer

TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>"]
TAGS += ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|tool_call>", "<tool_call|>", '<|"|>']
END = "<|end|>"

PIECES = ["a", "Zürich", " ", "\n", "\n\n", '"', "\\", "{", "}", "<", ">", "null", "5", "é\t"]
PIECES += ["</parameter>", "</function>", "</tool_call>", "<parameter=x>", "<tool_call>", "[ARGS]"]
PIECES += ["\n</parameter>\n", "<parameter=p1>"]
# Text that an unescaped XML parameter cannot contain, because it looks like the parameter's end.
AMBIGUOUS = re.compile(
    r"</parameter>\s*(<parameter=p|</function>|</tool_call>)|</function>\s*</tool_call>"
    r"|\n<parameter=p"
)
NESTED = object_schema(x={"type": "integer"})


def format_of(family):
    return find_format(AUTO, TEMPLATES[family])


def random_text(rng):
    """Returns a string that all formats can represent."""
    text = "".join(rng.choices(PIECES, k=rng.randrange(8)))
    return text if not AMBIGUOUS.search(f"\n{text}") else "a"


def random_parameter(rng):
    """Returns (schema, function that draws a random value)."""
    return rng.choice(
        [
            ({"type": "string"}, random_text),
            ({"type": "integer"}, lambda rng: rng.randrange(-99, 99)),
            ({"type": "number"}, lambda rng: rng.choice([0.5, -2e30, 7])),
            ({"type": "boolean"}, lambda rng: rng.random() < 0.5),
            ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, lambda rng: rng.choice([None, 3])),
            ({"type": "array", "items": {"type": "string"}}, lambda rng: [random_text(rng)] * 2),
            ({"$ref": "#/$defs/nested"}, lambda rng: {"x": rng.randrange(9)}),
            ({"enum": ["°C", "°F"]}, lambda rng: rng.choice(["°C", "°F"])),
        ]
    )


def random_tool(rng, name):
    """Returns (tool in OpenAI's format, function that draws random arguments)."""
    drawn = {f"p{i}": random_parameter(rng) for i in range(rng.randrange(4))}
    required = [key for key in drawn if rng.random() < 0.7]
    parameters = {
        "type": "object",
        "properties": {key: schema for key, (schema, _) in drawn.items()},
        "required": required,
        "$defs": {"nested": NESTED},
    }

    def draw(rng):
        keys = [key for key in drawn if key in required or rng.random() < 0.5]
        return {key: drawn[key][1](rng) for key in keys}

    return function_tool(name, parameters, description="A tool."), draw


def write_calls(family, calls, content=""):
    """Renders (name, arguments) calls as a completion in a template's format."""
    functions = [{"name": name, "arguments": arguments} for name, arguments in calls]
    tool_calls = [
        {"id": f"{index:09}", "type": "function", "function": function}
        for index, function in enumerate(functions)
    ]
    user = {"role": "user", "content": "Hi"}
    before = render(family, [user], add_generation_prompt=True)
    after = render(
        family, [user, {"role": "assistant", "content": content, "tool_calls": tool_calls}]
    )
    text = after[len(before.removesuffix("<think>\n")) :]
    return text.rstrip("\n").removesuffix("<|im_end|>").removesuffix("<|eot_id|>").removesuffix(END)


def render(family, messages, **variables):
    all_variables = {"bos_token": "<s>", "eos_token": END, "tools": None, **variables}
    return render_template(TEMPLATES[family], messages, **all_variables)


def parse(tool_call_format, text, tools, sizes=(10**9,), is_stream=False, **options):
    """Parses text in chunks whose sizes cycle through `sizes`.

    Returns (content, [(name, arguments as text)], parser).
    """
    is_truncated = options.pop("is_truncated", False)
    settings = ToolCallOptions(tool_call_format, tools, is_stream, **options)
    parser = OutputParser(False, False, settings)
    parts, start, number = [], 0, 0
    while start < len(text):
        size = sizes[number % len(sizes)]
        parts += parser.feed(text[start : start + size])
        start, number = start + size, number + 1
    content, calls = "", {}
    for part in [*parts, *parser.finish(is_truncated)]:
        if isinstance(part, TextDelta):
            content += part.text
        else:
            assert part.is_new == (part.id not in calls)
            assert is_stream or part.is_new
            calls.setdefault(part.id, [part.name, ""])[1] += part.arguments
    return content, [(name, arguments) for name, arguments in calls.values()], parser


def parsed_arguments(calls):
    return [(name, json.loads(arguments)) for name, arguments in calls]


def sample(matcher, tokenizer, rng: random.Random) -> str:
    """Samples a text of at most 2,000 tokens from a grammar."""
    tokens: list[int] = []
    [end] = tokenizer.eos_token_ids
    # Appended as a unit, because random sampling would hardly ever close an unbounded parameter.
    closing = tokenizer.encode("\n</parameter>\n")
    while len(tokens) < 2000:
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")[: len(tokenizer)]).tolist()
        if end in allowed and (rng.random() < 0.7 or len(allowed) == 1):
            return tokenizer.decode(tokens)
        drawn = [rng.choice([token for token in allowed if token != end])]
        if rng.random() < 0.1 and matcher.validate_tokens(closing) == len(closing):
            drawn = closing
        tokens += drawn
        assert matcher.consume_tokens(drawn)
    raise AssertionError(tokenizer.decode(tokens))


def random_sizes(rng: random.Random):
    return [rng.choice([1, 2, 3, 5, 17]) for _ in range(7)]


def byte_tokenizer(family, tags=()):
    """Returns a tokenizer with one token per byte and `tags` as special tokens."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate(letters)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([*tags, END])
    tokenizer = Tokenizer(Path(), backend, {}, {backend.token_to_id(END)})
    tokenizer.chat_template = TEMPLATES[family]
    return tokenizer
