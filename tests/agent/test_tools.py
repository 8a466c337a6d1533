"""The agent's built-in tools, with unusual arguments that fit the schemas."""

import json

import pytest

from tiny_llm.agent import Workspace, assistant
from tiny_llm.agent.tools import calculator, run_call


@pytest.mark.parametrize("name", ["add", "subtract", "multiply"])
@pytest.mark.parametrize("b", [10**3999, 10**4299], ids=["4000 digits", "4300 digits"])
def test_number_too_large_for_a_float_is_a_tool_error(name, b):
    text = json.dumps({"a": 1.5, "b": b})
    call = assistant(None, (name, text))["tool_calls"][0]
    result = run_call(call, {tool.name: tool for tool in calculator()})
    assert result["content"].startswith("error: the numbers are too large")


def test_calculator_results():
    tools = {tool.name: tool for tool in calculator()}
    results = [tools[name].function(a=7, b=2) for name in ("add", "subtract", "multiply")]
    assert results == ["9", "5", "14"]


def test_first_line_may_be_an_integral_float(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    tools = {tool.name: tool for tool in Workspace(tmp_path).tools()}
    call = assistant(None, ("read_file", {"path": "a.txt", "first_line": 2.0}))["tool_calls"][0]
    assert run_call(call, tools)["content"] == "two\nthree\n"
