"""Minimal chat templates of five model families: turns, tools and tool calls."""

# CALL and PROMPT stand for the text of a call, and for the start of the assistant's reply.
_CHATML = """\
{%- if tools %}{{ "<|im_start|>system\\n" + tools | tojson + "<|im_end|>\\n" }}{% endif %}
{%- for message in messages %}
    {{- "<|im_start|>" + message.role + "\\n" + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- "\\n" if message.content or not loop.first }}
        CALL
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}PROMPT{% endif %}"""

_JSON_CALL = """\
        {{- '<tool_call>\\n{"name": ' + call.function.name | tojson + ', "arguments": ' }}
        {{- call.function.arguments | tojson + "}\\n</tool_call>" }}"""

_XML_CALL = """\
        {{- "<tool_call>\\n<function=" + call.function.name + ">\\n" }}
        {%- for name, value in call.function.arguments | items %}
            {{- "<parameter=" + name + ">\\n" }}
            {{- value if value is string else value | tojson }}
            {{- "\\n</parameter>\\n" }}
        {%- endfor %}
        {{- "</function>\\n</tool_call>" }}"""

_OPEN_REASONING = (
    '{{ "<think>\\n\\n</think>\\n\\n" if enable_thinking is false else "<think>\\n" }}'
)

LLAMA3 = """\
{{- bos_token }}
{%- if tools %}
    {{- "<|start_header_id|>system<|end_header_id|>\\n\\nEnvironment: ipython\\n" }}
    {{- tools | tojson + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {{- "<|start_header_id|>" + message.role + "<|end_header_id|>\\n\\n" }}
    {%- if message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}
            {{- raise_exception("only one call per message") }}
        {%- endif %}
        {%- set function = message.tool_calls[0].function %}
        {{- '{"name": "' + function.name + '", "parameters": ' }}
        {{- function.arguments | tojson + "}" }}
    {%- else %}
        {{- message.content }}
    {%- endif %}
    {{- "<|eot_id|>" }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- "<|start_header_id|>assistant<|end_header_id|>\\n\\n" }}
{%- endif %}"""

# CALL and RESULT stand for the texts of a call and of its result.
_MISTRAL = """\
{{- bos_token }}
{%- if tools %}{{ "[AVAILABLE_TOOLS]" + tools | tojson + "[/AVAILABLE_TOOLS]" }}{% endif %}
{%- for message in messages %}
    {%- if message.role == "user" %}{{ "[INST]" + message.content + "[/INST]" }}
    {%- elif message.role == "tool" %}
        {%- if message.tool_call_id | length != 9 %}{{ raise_exception("nine") }}{% endif %}
        RESULT
    {%- else %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {%- if call.id | length != 9 %}
                {{- raise_exception("call ids must have nine letters and digits") }}
            {%- endif %}
            CALL
        {%- endfor %}
        {{- eos_token }}
    {%- endif %}
{%- endfor %}"""

_LIST_CALL = """\
            {{- "[TOOL_CALLS] [" if loop.first else ", " }}
            {{- '{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + ', "id": "' + call.id + '"}' }}
            {{- "]" if loop.last }}"""
_LIST_RESULT = """\
        {{- '[TOOL_RESULTS] {"content": ' + message.content | tojson + ', "call_id": "' }}
        {{- message.tool_call_id + '"}[/TOOL_RESULTS]' }}"""

_ARGS_CALL = """\
            {{- "[TOOL_CALLS]" + call.function.name + "[CALL_ID]" + call.id + "[ARGS]" }}
            {{- call.function.arguments | tojson }}"""
_ARGS_RESULT = """\
        {{- "[TOOL_RESULTS]" + message.tool_call_id + "[TOOL_CONTENT]" + message.content }}
        {{- "[/TOOL_RESULTS]" }}"""

GEMMA4 = """\
{%- macro argument(value) -%}
    {%- if value is string %}{{ '<|"|>' + value + '<|"|>' }}
    {%- elif value is boolean %}{{ "true" if value else "false" }}
    {%- elif value is mapping -%}
        {{ "{" }}{% for key, item in value | dictsort -%}
            {{ "" if loop.first else "," }}{{ key }}:{{ argument(item) }}
        {%- endfor %}{{ "}" }}
    {%- elif value is sequence -%}
        [{% for item in value %}{{ "" if loop.first else "," }}{{ argument(item) }}{% endfor %}]
    {%- else %}{{ value }}{% endif %}
{%- endmacro %}
{{- bos_token }}
{%- for tool in tools or [] %}{{ "<|tool>declaration:" + tool.function.name + "<tool|>" }}
{%- endfor %}
{%- for message in messages %}
    {{- "<|turn>" + message.role + "\\n" + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- "<|tool_call>call:" + call.function.name + argument(call.function.arguments) }}
        {{- "<tool_call|>" }}
    {%- endfor %}
    {{- eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|turn>assistant\\n" }}{% endif %}"""


def _chatml(call: str, prompt: str = "") -> str:
    return _CHATML.replace("        CALL", call).replace("PROMPT", prompt)


def _mistral(call: str, result: str) -> str:
    return _MISTRAL.replace("            CALL", call).replace("        RESULT", result)


TEMPLATES = {
    "qwen3": _chatml(_JSON_CALL),
    "qwen3-coder": _chatml(_XML_CALL),
    "qwen3.5": _chatml(_XML_CALL, _OPEN_REASONING),
    "llama3": LLAMA3,
    "mistral-list": _mistral(_LIST_CALL, _LIST_RESULT),
    "mistral-args": _mistral(_ARGS_CALL, _ARGS_RESULT),
    "gemma4": GEMMA4,
}
