"""Tool definitions and tool choice of `POST /v1/messages`."""

import json
from typing import Any, Literal

from ..protocol.base_schema import JsonObject, RequestModel, ShortList


class MessagesTool(RequestModel):
    """A client-side tool. Server-side tools are not supported."""

    name: str
    description: str | None = None
    input_schema: JsonObject
    type: Literal["custom"] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None  # not in the prompt until a tool result references it
    input_examples: ShortList[JsonObject] | None = None

    def openai_tool(self) -> dict[str, Any]:
        """Converts to OpenAI's format; input examples become part of the description."""
        lines = [self.description] if self.description else []
        if self.input_examples:
            lines.append("Input examples:")
            lines += [json.dumps(example, ensure_ascii=False) for example in self.input_examples]
        function: dict[str, Any] = {
            "name": self.name,
            "description": "\n".join(lines),
            "parameters": self.input_schema,
        }
        if self.strict is not None:
            function["strict"] = self.strict
        return {"type": "function", "function": function}


class ToolChoice(RequestModel):
    type: Literal["auto", "none", "any", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None
