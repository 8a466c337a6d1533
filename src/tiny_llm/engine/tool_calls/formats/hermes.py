"""Hermes: JSON between tags, the format of Qwen2.5 and Qwen3.

    <tool_call>
    {"name": "add", "arguments": {"a": 17, "b": 25}}
    </tool_call>

The end tag may be missing, as in vLLM.
"""

from ..format import CallGrammar, Functions, ToolCallFormat, ToolCallRules, tag, tagged_grammar
from ..json_calls import argument_schemas, json_call_rule, parse_json_call
from ..text_source import Events, MalformedCallError, TextSource

START, END = "<tool_call>", "</tool_call>"


class HermesFormat(ToolCallFormat):
    """JSON between `<tool_call>` and `</tool_call>`; see the module docstring."""

    name = "hermes"
    tags = (START,)

    def parse(self, source: TextSource, functions: Functions) -> Events:
        """See `ToolCallFormat`."""
        # [task 5.5.3 hermes]
        yield from source.skip_space()
        yield from source.accept(START)
        yield from source.skip_space()
        if not source.buffer.startswith("{"):
            raise MalformedCallError
        yield from parse_json_call(source, ("arguments",))
        yield from source.skip_space()
        yield from source.accept_end(END)
        # [/task 5.5.3 hermes]

    def grammar(self, rules: ToolCallRules) -> CallGrammar:
        """See `ToolCallFormat`. Allows only the whitespace that chat templates write."""
        lark = tagged_grammar(rules, START, "rest", "\n")
        lark += f'rest: "\\n" call "\\n" {tag(END, rules.special_tokens)}\n'
        lark += json_call_rule(rules.functions, "arguments")
        return CallGrammar(lark, argument_schemas(rules.functions))
