"""Minimal chat templates of five model families: turns, tools and tool calls."""

QWEN3 = """\
{%- if tools %}{{ "<|im_start|>system\\n<tools>" }}
{%- for tool in tools %}{{ "\\n" + tool | tojson }}{% endfor %}
{{- '\\n</tools>\\nReply with <tool_call>{"name": …, "arguments": …}</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- "<|im_start|>" + message.role + "\\n" + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- "\\n" if message.content or not loop.first }}
        {{- '<tool_call>\\n{"name": ' + call.function.name | tojson + ', "arguments": ' }}
        {{- call.function.arguments | tojson + "}\\n</tool_call>" }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}{% endif %}"""

_QWEN_XML_TURNS = """\
{%- for message in messages %}
    {{- "<|im_start|>" + message.role + "\\n" + message.content }}
    {%- for call in message.tool_calls or [] %}
        {{- "\\n" if message.content or not loop.first }}
        {{- "<tool_call>\\n<function=" + call.function.name + ">\\n" }}
        {%- for name, value in call.function.arguments | items %}
            {{- "<parameter=" + name + ">\\n" }}
            {{- value if value is string else value | tojson }}
            {{- "\\n</parameter>\\n" }}
        {%- endfor %}
        {{- "</function>\\n</tool_call>" }}
    {%- endfor %}
    {{- "<|im_end|>\\n" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<|im_start|>assistant\\n" }}"""

QWEN3_CODER = (
    """\
{%- if tools %}{{ "<|im_start|>system\\n" }}
{%- for tool in tools %}{{ "<function>\\n<name>" + tool.function.name + "</name>\\n" }}{% endfor %}
{{- "</function><|im_end|>\\n" }}
{%- endif %}
"""
    + _QWEN_XML_TURNS
    + "{% endif %}"
)

QWEN3_5 = (
    """\
{%- if tools %}{{ "<|im_start|>system\\n<tools>" }}
{%- for tool in tools %}{{ "\\n" + tool | tojson }}{% endfor %}
{{- "\\n</tools>\\n<tool_call>\\n<function=name>\\n<parameter=key>\\nvalue\\n</parameter>" }}
{{- "\\n</function>\\n</tool_call><|im_end|>\\n" }}
{%- endif %}
"""
    + _QWEN_XML_TURNS
    + """\
{{- "<think>\\n\\n</think>\\n\\n" if enable_thinking is false else "<think>\\n" }}{% endif %}"""
)

LLAMA3 = """\
{{- bos_token }}
{%- if tools %}
    {{- "<|start_header_id|>system<|end_header_id|>\\n\\nEnvironment: ipython\\n" }}
    {{- 'Reply with {"name": function, "parameters": dictionary}.\\n' }}
    {%- for tool in tools %}{{ tool | tojson }}{% endfor %}
    {{- "<|eot_id|>" }}
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

_MISTRAL_CHECK = """\
        {%- if call.id is not defined or call.id | length != 9 %}
            {{- raise_exception("call ids must have nine letters and digits") }}
        {%- endif %}
"""

MISTRAL_LIST = (
    """\
{{- bos_token }}
{%- if tools %}{{ "[AVAILABLE_TOOLS] " + tools | tojson + "[/AVAILABLE_TOOLS]" }}{% endif %}
{%- for message in messages %}
    {%- if message.role == "user" %}{{ "[INST] " + message.content + "[/INST]" }}
    {%- elif message.role == "tool" %}
        {%- if message.tool_call_id | length != 9 %}{{ raise_exception("nine") }}{% endif %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | tojson }}
        {{- ', "call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- elif message.tool_calls %}
        {{- "[TOOL_CALLS] [" }}
        {%- for call in message.tool_calls %}
"""
    + _MISTRAL_CHECK
    + """\
            {{- '{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson + ', "id": "' + call.id + '"}' }}
            {{- ", " if not loop.last }}
        {%- endfor %}
        {{- "]" + eos_token }}
    {%- else %}{{ message.content + eos_token }}
    {%- endif %}
{%- endfor %}"""
)

MISTRAL_ARGS = (
    """\
{{- bos_token }}
{%- if tools %}{{ "[AVAILABLE_TOOLS]" + tools | tojson + "[/AVAILABLE_TOOLS]" }}{% endif %}
{%- for message in messages %}
    {%- if message.role == "user" %}{{ "[INST]" + message.content + "[/INST]" }}
    {%- elif message.role == "tool" %}
        {%- if message.tool_call_id | length != 9 %}{{ raise_exception("nine") }}{% endif %}
        {{- "[TOOL_RESULTS]" + message.tool_call_id + "[TOOL_CONTENT]" + message.content }}
        {{- "[/TOOL_RESULTS]" }}
    {%- else %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
"""
    + _MISTRAL_CHECK
    + """\
            {{- "[TOOL_CALLS]" + call.function.name + "[CALL_ID]" + call.id + "[ARGS]" }}
            {{- call.function.arguments | tojson }}
        {%- endfor %}
        {{- eos_token }}
    {%- endif %}
{%- endfor %}"""
)

_GEMMA4_ARGUMENT = """\
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
"""

GEMMA4 = (
    _GEMMA4_ARGUMENT
    + """\
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
)

TEMPLATES = {
    "qwen3": QWEN3,
    "qwen3-coder": QWEN3_CODER,
    "qwen3.5": QWEN3_5,
    "llama3": LLAMA3,
    "mistral-list": MISTRAL_LIST,
    "mistral-args": MISTRAL_ARGS,
    "gemma4": GEMMA4,
}
