"""Registry of tool-call formats, and format detection in chat templates.

| format | chat templates | families |
|---|---|---|
| `hermes` | `<tool_call>`; the default | Qwen2.5, Qwen3, Hermes |
| `qwen3_coder` | `<function=` and `<parameter=` | Qwen3-Coder, Qwen3.5 |
| `llama3_json` | `<|python_tag|>`, or Llama's header and `"parameters":` | Llama 3.1, 3.2, 3.3 |
| `mistral` | `[TOOL_CALLS]`, with `[ARGS]` or a list | Mistral, Ministral, Devstral |
| `openai` | `<|channel|>` and `<|message|>` | gpt-oss |
| `gemma4` | `<|tool_call>` | Gemma 4 |
"""

import re
from typing import Any

from ...errors import UserError
from .format import ToolCallFormat
from .gemma4 import CALL_START, Gemma4Format
from .harmony import CHANNEL, MESSAGE, HarmonyFormat
from .json_calls import (
    ARGUMENTS,
    CALL_ID,
    PYTHON_TAG,
    TOOL_CALLS,
    HermesFormat,
    Llama3JsonFormat,
    MistralFormat,
)
from .qwen3_coder import Qwen3CoderFormat

AUTO = "auto"
NAMES = ("hermes", "qwen3_coder", "llama3_json", "mistral", "gemma4", "openai")
LLAMA_ARGUMENTS = re.compile(r'"parameters\\?"\s*:')


def find_format(name: str, chat_template: Any) -> ToolCallFormat:
    """Returns a format by name; "auto" detects it in the model's chat template."""
    template = chat_template if isinstance(chat_template, str) else str(chat_template or "")
    match detect(template) if name == AUTO else name:
        case "mistral":
            return MistralFormat(ARGUMENTS not in template, CALL_ID in template)
        case "llama3_json":
            return Llama3JsonFormat()
        case "qwen3_coder":
            return Qwen3CoderFormat()
        case "openai":
            return HarmonyFormat()
        case "hermes":
            return HermesFormat()
        case "gemma4":
            return Gemma4Format()
    raise UserError(f"tool_call_parser must be one of {AUTO}, {', '.join(NAMES)}, got '{name}'.")


def detect(template: str) -> str:
    if CHANNEL in template and MESSAGE in template:
        return "openai"
    if TOOL_CALLS in template:
        return "mistral"
    if CALL_START in template:
        return "gemma4"
    if "<function=" in template and "<parameter=" in template:
        return "qwen3_coder"
    if "<tool_call>" in template:
        return "hermes"
    is_llama = "<|start_header_id|>" in template and LLAMA_ARGUMENTS.search(template) is not None
    return "llama3_json" if is_llama or PYTHON_TAG in template else "hermes"
