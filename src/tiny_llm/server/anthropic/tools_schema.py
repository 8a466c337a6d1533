"""Tools, as clients of Anthropic's protocol describe them, and whether one must be called."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from ..protocol.sampling import StrictModel


class CacheableModel(StrictModel):
    """What all blocks have; pages of the prompt are cached whether asked for or not."""

    cache_control: dict[str, Any] | None = None


class MessagesTool(CacheableModel):
    """A tool; only those that the client runs itself are known."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    allowed_callers: Annotated[list[Literal["direct"]], Field(min_length=1)] | None = None
    defer_loading: Literal[False] | None = None
    input_examples: list[dict[str, Any]] | None = None

    def openai_tool(self) -> dict[str, Any]:
        """The tool in the form that chat templates read; examples belong to its description."""
        lines = [self.description] if self.description else []
        if self.input_examples:
            lines.append("Examples of its input:")
            lines += [json.dumps(example, ensure_ascii=False) for example in self.input_examples]
        function = {
            "name": self.name,
            "description": "\n".join(lines),
            "parameters": self.input_schema,
        }
        return {"type": "function", "function": function}


class ToolChoice(StrictModel):
    """Whether the model must call a tool."""

    type: Literal["auto", "none", "any", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None
