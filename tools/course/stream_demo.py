"""`pdm run stream-demo`: a stream of reasoning and a tool call, for day 5.5.

Prints the deltas that a client receives, one per line, while the demo model generates.
"""

import argparse
import sys

from .solution_flag import parse_with_tree, restart_in_tree
from .tasks import day_of

QUESTION = [{"role": "user", "content": "What is the weather in Oslo?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {
    "name": "get_weather",
    "description": "Get the weather in a city.",
    "parameters": PARAMETERS,
}
TOOLS = [{"type": "function", "function": FUNCTION}]


def main() -> int:
    """Prints the deltas of one streamed response."""
    parser = argparse.ArgumentParser(
        prog="stream-demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--budget", type=int, help="limit on reasoning tokens")
    args, tree = parse_with_tree(parser)
    restart_in_tree(tree, "tools.course.stream_demo", day=day_of(5, 5))

    from tiny_llm import LLM, SamplingParams
    from tiny_llm.engine.outputs.output_parser import OutputParser, ReasoningDelta, TextDelta
    from tiny_llm.engine.tool_calls.format import ToolCallOptions
    from tiny_llm.engine.tool_calls.registry import AUTO, find_format
    from tiny_llm.errors import TaskNotImplemented

    llm = LLM("demo", kv_cache_bytes=2**25)
    call_format = find_format(AUTO, llm.tokenizer.chat_template)
    tool_calls = ToolCallOptions(call_format, TOOLS, is_stream=True)
    output_parser = OutputParser(True, False, tool_calls)
    params = SamplingParams(temperature=0, max_tokens=100, thinking_token_budget=args.budget)
    llm.add_request(QUESTION, params, tools=TOOLS, enable_thinking=True)
    num_tokens = 0
    try:
        while llm.has_unfinished_requests:
            for output in llm.step():
                if output.error is not None:
                    print(output.error, file=sys.stderr)
                    return 1
                num_tokens += len(output.token_ids)
                deltas = output_parser.feed(output.text)
                if output.finish_reason is not None:
                    deltas += output_parser.finish(output.finish_reason != "stop")
                for delta in deltas:
                    if isinstance(delta, ReasoningDelta | TextDelta):
                        kind = "reasoning" if isinstance(delta, ReasoningDelta) else "content"
                        text = delta.text
                    else:
                        kind = "call" if delta.is_new else "arguments"
                        text = delta.name if delta.is_new else delta.arguments
                    print(f"token {num_tokens:2}  {kind:9}  {text!r}")
    except TaskNotImplemented as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
