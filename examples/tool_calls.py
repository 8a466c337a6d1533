"""Tool calling: execute the model's call of a Python function.

The model must write calls in the Hermes format, as Qwen3 does.

Usage:
    pip install 'tiny-llm[structured]'
    python examples/tool_calls.py
"""

import argparse
import json
import re

from tiny_llm import LLM, SamplingParams, ToolCalls


def get_weather(city: str) -> str:
    """Mock weather service."""
    return "sunny, 21 degrees" if city == "Oslo" else "cloudy"


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Get the weather.", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]


def main() -> None:
    """Runs the model's tool call, then generates the final response from its result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo", help="short name, hub id or folder")
    args = parser.parse_args()

    llm = LLM(args.model)
    messages: list[dict] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    # "required" demands a tool call; "auto" leaves the choice to the model.
    one_call = ToolCalls(TOOLS, choice="required", parallel=False)
    params = SamplingParams(temperature=0, max_tokens=100, structured_outputs=one_call)
    text = llm.generate(messages, params, tools=TOOLS)[0].text
    call = json.loads(re.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL)[0])
    result = get_weather(**call["arguments"])
    print(f"call:   {call['name']}({call['arguments']}) -> {result}")

    messages += [
        {"role": "assistant", "tool_calls": [{"type": "function", "function": call}]},
        {"role": "tool", "content": result},
    ]
    params = SamplingParams(temperature=0, max_tokens=100)
    print(f"answer: {llm.generate(messages, params, tools=TOOLS)[0].text}")


if __name__ == "__main__":
    main()
