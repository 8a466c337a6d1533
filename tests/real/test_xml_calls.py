"""Official Qwen templates with their tokenizer: calls with end tags in values."""

import json
import os

import pytest
import tokenizers

from tests.engine.tool_calls.support import parse, parsed_arguments
from tests.support import function_tool, object_schema
from tiny_llm import ToolCalls
from tiny_llm.engine.inputs.chat_template import render_chat
from tiny_llm.engine.structured_output.compiler import GrammarCompiler
from tiny_llm.engine.structured_output.grammar import ThinkingState
from tiny_llm.engine.tool_calls.registry import AUTO, find_format
from tiny_llm.models.tokenizer.tokenizer import Tokenizer

pytest.importorskip("llguidance")

STRING = {"type": "string"}
PROPERTIES = {"path": STRING, "text": STRING, "count": {"type": "integer"}, "note": STRING}
SCHEMA = {**object_schema(**PROPERTIES), "required": ["path", "text"]}
TOOL = function_tool("edit", SCHEMA, description="")
TEXTS = [
    "a\n</parameter>\nb",
    "a\n</parameter>\n<parameter=new_string>\nb\n</parameter>\n",
    "</parameter>\n<parameter=path>\n</function>",
    "  <b>\n\n",
]


@pytest.fixture(scope="module", params=["Qwen3-Coder", "Qwen3.5-4B"])
def model(request, artifact):
    """(tokenizer with the template, its grammar compiler)."""
    file, templates = artifact("tokenizer-qwen3") / "tokenizer.json", artifact("chat-templates")
    backend = tokenizers.Tokenizer.from_file(os.fspath(file))
    tokenizer = Tokenizer(templates, backend, {}, {151645})
    tokenizer.chat_template = (templates / f"{request.param}.jinja").read_text()
    return tokenizer, GrammarCompiler(tokenizer, len(tokenizer))


@pytest.mark.parametrize("text", TEXTS)
def test_calls_of_the_template(model, text):
    tokenizer, compiler = model
    arguments = {"path": "a.py", "text": text, "note": "x"}
    function = {"name": "edit", "arguments": json.dumps(arguments)}
    call = {"id": "call_1", "type": "function", "function": function}
    messages = [{"role": "user", "content": "Hi"}]
    answer = {"role": "assistant", "content": "So:", "tool_calls": [call]}
    rendered = render_chat(tokenizer, [*messages, answer], [TOOL], add_generation_prompt=False)
    output = "So:" + rendered.rpartition("So:")[2].partition("<|im_end|>")[0]
    for state in (ThinkingState.NONE, ThinkingState.OPEN):  # also inside the reasoning
        matcher = compiler.compile(ToolCalls([TOOL]), state).matcher
        tokens = tokenizer.encode(output, add_special_tokens=False)
        assert matcher.try_consume_tokens(tokens) == len(tokens), output
        assert matcher.is_accepting()
    calls_format = find_format(AUTO, tokenizer.chat_template)
    for sizes in ((1,), (10**6,)):
        content, calls, _ = parse(calls_format, output, [TOOL], sizes)
        assert content.strip() == "So:"
        assert parsed_arguments(calls) == [("edit", arguments)]
