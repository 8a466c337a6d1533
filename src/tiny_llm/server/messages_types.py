"""`POST /v1/messages`: what a client of Anthropic's protocol may send."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from .errors import refused
from .sampling import Body, Count

# Claude Code begins its system prompt with a line that changes; it would cost the cached prefix.
CHANGING_LINE = "x-anthropic-billing-header"


class Block(Body):
    """What all blocks have; pages of the prompt are cached whether asked for or not."""

    cache_control: dict[str, Any] | None = None


class TextBlock(Block):
    """A text."""

    type: Literal["text"]
    text: str
    citations: list[Any] | None = None


class ThinkingBlock(Block):
    """What the model thought in an earlier turn."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class ToolUseBlock(Block):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


class ToolResultBlock(Block):
    """What a call returned."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None


AnyBlock = Annotated[
    TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock, Field(discriminator="type")
]


class Turn(Body):
    """What one side said."""

    role: Literal["user", "assistant"]
    content: str | list[AnyBlock]


class MessagesTool(Block):
    """A tool; only those that the client runs itself are known."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None


class ToolChoice(Body):
    """Whether the model must call a tool."""

    type: Literal["auto", "none", "any", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=0)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class CountBody(Body):
    """The body of a request whose tokens are counted."""

    model: str | None = None
    messages: Annotated[list[Turn], Field(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None

    def check_honoured(self) -> None:
        """Refuses what this server cannot do.

        Raises:
            ApiError: the first such field.
        """
        if self.tool_choice is not None and self.tool_choice.type in ("any", "tool"):
            raise refused("tool_choice can be auto or none; a call cannot be forced.")

    @property
    def uses_tools(self) -> bool:
        """Whether the model may call tools."""
        return bool(self.tools) and (self.tool_choice is None or self.tool_choice.type != "none")

    @property
    def thinks(self) -> bool:
        """Whether thinking was asked for."""
        return self.thinking is not None and self.thinking.type != "disabled"

    def openai_tools(self) -> list[dict[str, Any]]:
        """The tools in the form that chat templates read."""
        return [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description or "",
                    "parameters": tool.input_schema,
                },
            }
            for tool in self.tools or ()
        ]

    def for_template(self) -> list[dict[str, Any]]:
        """The conversation with the keys that chat templates read."""
        system = _joined(self.system, CHANGING_LINE)
        messages = [{"role": "system", "content": system}] if system else []
        for turn in self.messages:
            messages += _turn(turn)
        return messages


class MessagesBody(CountBody):
    """The body of a request."""

    max_tokens: Count
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31)] | None = None
    stop_sequences: list[Annotated[str, Field(min_length=1)]] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


def _joined(content: str | list[TextBlock] | None, without: str | None = None) -> str:
    """A content's texts, without blocks that begin with a line that is left out."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = [block.text for block in content]
    return "\n".join(text for text in texts if not (without and text.startswith(without)))


def _turn(turn: Turn) -> list[dict[str, Any]]:
    """A turn as messages: results of tools are messages of their own."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    results, texts, thoughts, calls = [], [], [], []
    for block in turn.content:
        match block:
            case TextBlock():
                texts.append(block.text)
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case ToolUseBlock():
                arguments = json.dumps(block.input, ensure_ascii=False)
                function = {"name": block.name, "arguments": arguments}
                calls.append({"id": block.id, "type": "function", "function": function})
            case ToolResultBlock():
                results.append({"role": "tool", "content": _joined(block.content)})
    if not (texts or thoughts or calls):
        return results
    message: dict[str, Any] = {"role": turn.role, "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [*results, message]
