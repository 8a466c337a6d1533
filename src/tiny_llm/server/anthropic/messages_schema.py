"""Request schema of `POST /v1/messages`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from ...engine.inputs.chat_template import EFFORT_VARIABLE
from ..http.errors import bad_request
from ..protocol.prompts import THINKING_VARIABLE
from ..protocol.request_fields import (
    INT64_MAX,
    BoundedList,
    CommonToolChoice,
    JsonObject,
    OutputConstraint,
    ReasoningEffort,
    RequestBody,
    RequestModel,
    ShortList,
    decode_reasoning,
    make_constraint,
    replace_media,
    thinking_budget,
    value_path,
)


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


# Start of a line that Claude Code sends first in its system prompt or a later system message. The
# line is removed, because it differs per session.
BILLING_HEADER = "x-anthropic-billing-header"


class TextBlock(RequestModel):
    type: Literal["text"]
    text: str


class ThinkingBlock(RequestModel):
    type: Literal["thinking"]
    thinking: str
    signature: str | None = None  # not verified


class RedactedThinkingBlock(RequestModel):
    """Redacted reasoning from an earlier turn; ignored."""

    type: Literal["redacted_thinking"]
    data: str


class PlainTextSource(RequestModel):
    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: str


class DocumentBlock(RequestModel):
    """A plain-text document; PDF files and other formats are not supported."""

    type: Literal["document"]
    source: PlainTextSource
    title: str | None = None
    context: str | None = None

    @property
    def text(self) -> str:
        return "\n".join(filter(None, (self.title, self.context, self.source.data)))


class SearchResultBlock(RequestModel):
    """A search result from the client, passed to the model as text."""

    type: Literal["search_result"]
    source: str
    title: str
    content: BoundedList[TextBlock]

    @property
    def text(self) -> str:
        return "\n".join((self.title, self.source, *(block.text for block in self.content)))


class ToolReferenceBlock(RequestModel):
    """A deferred tool that the client's tool search found; replaced with the tool's definition."""

    type: Literal["tool_reference"]
    tool_name: str


ResultPart = Annotated[
    TextBlock | SearchResultBlock | DocumentBlock | ToolReferenceBlock, Field(discriminator="type")
]


class ToolUseBlock(RequestModel):
    type: Literal["tool_use"]
    id: str
    name: str
    input: JsonObject


class ToolResultBlock(RequestModel):
    """Result of a tool call; its images and documents are replaced with text."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | BoundedList[ResultPart] | None = None
    is_error: bool | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _replace_media(cls, content: Any) -> Any:
        return replace_media(content)


ContentBlock = Annotated[
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | DocumentBlock
    | SearchResultBlock
    | ToolUseBlock
    | ToolResultBlock,
    Field(discriminator="type"),
]


class MessageParam(RequestModel):
    """A message. Claude Code also sends system messages between turns.

    Images and documents beside a tool result are replaced with text, too, because Claude Code sends
    a tool's PDF file as a separate block.
    """

    role: Literal["user", "assistant", "system"]
    content: str | BoundedList[ContentBlock] | None = None  # only system messages may omit it

    @field_validator("content", mode="before")
    @classmethod
    def _replace_media(cls, content: Any) -> Any:
        blocks = content if isinstance(content, list) else []
        has_result = any(isinstance(b, dict) and b.get("type") == "tool_result" for b in blocks)
        return replace_media(content) if has_result else content


class ThinkingConfig(RequestModel):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None
    display: str | None = None  # "omitted" omits the reasoning's text


class OutputFormat(RequestModel):
    type: Literal["json_schema"]
    schema_: Annotated[JsonObject, Field(alias="schema")]


class OutputConfig(RequestModel):
    effort: ReasoningEffort | None = None
    format: OutputFormat | None = None


class Diagnostics(RequestModel):
    """Asks why the request missed the prefix that an earlier message cached."""

    previous_message_id: str | None = None


class CountTokensRequest(RequestBody):
    messages: Annotated[BoundedList[MessageParam], Field(min_length=1)]
    system: str | BoundedList[TextBlock] | None = None
    tools: ShortList[MessagesTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # earlier name for output_config.format

    def ignored_values(self) -> Iterator[str]:
        display = None if self.thinking is None else self.thinking.display
        if display not in (None, "omitted"):
            yield value_path("thinking.display", display)

    def check_fields(self) -> None:
        if self.output_format is not None and self.output_config_format is not None:
            raise bad_request(
                "output_format and output_config.format are the same option; set only one of them.",
                "output_format",
            )
        self._choice.check({tool.name for tool in self.tools or ()})

    def constraint(self) -> OutputConstraint | None:
        choice = self.tool_choice
        output_format = self.output_format or self.output_config_format
        response_constraint = None
        if output_format is not None:
            schema = output_format.schema_
            response_constraint = make_constraint("output_config.format", json=schema, strict=False)
        if choice is not None and choice.type == "tool" and choice.name is None:
            raise bad_request("tool_choice.name is required for type 'tool'.")
        return self._choice.constraint(
            self.usable_tools, not self.first_call_only, response_constraint
        )

    @property
    def first_call_only(self) -> bool:
        return self.tool_choice is not None and bool(self.tool_choice.disable_parallel_tool_use)

    @property
    def _choice(self) -> CommonToolChoice:
        given = self.tool_choice
        if given is None or given.type in ("auto", "none"):
            return CommonToolChoice("auto" if given is None else given.type)
        return CommonToolChoice("required", given.name if given.type == "tool" else None)

    @property
    def output_config_format(self) -> OutputFormat | None:
        return None if self.output_config is None else self.output_config.format

    @cached_property
    def usable_tools(self) -> list[dict[str, Any]]:
        return self._choice.usable([tool.openai_tool() for tool in self.tools or ()])

    @property
    def prompt_tools(self) -> list[dict[str, Any]]:
        """Tools for the chat template: those that are not deferred.

        References add deferred tools to the conversation's end, which keeps the cached prefix.
        """
        deferred = {tool.name for tool in self.tools or () if tool.defer_loading}
        return [tool for tool in self.usable_tools if tool["function"]["name"] not in deferred]

    @property
    def continue_final_message(self) -> bool:
        """Whether the final message is a prefill, which the model continues."""
        last = self.messages[-1]
        if last.role != "assistant" or last.content is None:
            return False
        return isinstance(last.content, str) or all(isinstance(b, TextBlock) for b in last.content)

    @property
    def wants_thinking(self) -> bool:
        return self.thinking is not None and self.thinking.type != "disabled"

    @property
    def effort(self) -> ReasoningEffort | None:
        return None if self.output_config is None else self.output_config.effort

    def template_variables(self) -> dict[str, Any]:
        return {THINKING_VARIABLE: self.wants_thinking, EFFORT_VARIABLE: self.effort}

    def to_template_messages(self) -> list[dict[str, Any]]:
        definitions = {tool["function"]["name"]: tool for tool in self.usable_tools}
        system = _system_texts(_texts(self.system, definitions))
        messages = [{"role": "system", "content": "\n".join(system)}] if system else []
        for number, turn in enumerate(self.messages):
            if turn.content is None and turn.role != "system":
                path = f"messages[{number}].content"
                raise bad_request(f"{path} is required.", path)
            messages += _to_messages(turn, definitions)
        return messages


class MessagesRequest(CountTokensRequest):
    max_tokens: Annotated[int, Field(ge=0, le=INT64_MAX)]
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31)] | None = None
    stop_sequences: ShortList[Annotated[str, Field(min_length=1)]] | None = None
    diagnostics: Diagnostics | None = None

    @property
    def thinking_budget(self) -> int | None:
        tokens = None if self.thinking is None else self.thinking.budget_tokens
        budget = thinking_budget(tokens, self.effort, self.max_tokens)
        return budget if self.wants_thinking else None


def _texts(content: str | Sequence[ResultPart] | None, definitions: Mapping[str, Any]) -> list[str]:
    """Returns the texts of content; `definitions` are those of tools by name."""
    if content is None or isinstance(content, str):
        return [content or ""]
    return [
        json.dumps(definitions.get(block.tool_name, block.tool_name), ensure_ascii=False)
        if isinstance(block, ToolReferenceBlock)
        else block.text
        for block in content
    ]


def _system_texts(texts: Sequence[str]) -> list[str]:
    """Returns non-empty texts of a system prompt, without the billing line."""
    stripped = (
        text.partition("\n")[2] if text.startswith(BILLING_HEADER) else text for text in texts
    )
    return list(filter(None, stripped))


def _to_messages(turn: MessageParam, definitions: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Converts a turn to messages; each tool result becomes a separate message."""
    given = turn.content
    blocks = [TextBlock(type="text", text=given)] if isinstance(given, str) else given
    results, texts, reasoning, calls = [], [], [], []
    for block in blocks or ():
        match block:
            case TextBlock() | DocumentBlock() | SearchResultBlock():
                texts.append(block.text)
            case ThinkingBlock():
                reasoning.append(block.thinking or decode_reasoning(block.signature))
            case ToolUseBlock():
                arguments = json.dumps(block.input, ensure_ascii=False)
                function = {"name": block.name, "arguments": arguments}
                calls.append({"id": block.id, "type": "function", "function": function})
            case ToolResultBlock():
                content = "\n".join(_texts(block.content, definitions))
                # Marked in the text, because chat templates have no field for errors.
                prefix = "Error: " if block.is_error else ""
                result = {"role": "tool", "tool_call_id": block.tool_use_id}
                results.append({**result, "content": prefix + content})
    if turn.role == "system":
        texts = _system_texts(texts)
    if not (texts or reasoning or calls):
        return results
    message: dict[str, Any] = {"role": turn.role, "content": "\n".join(texts)}
    if reasoning:
        message["reasoning_content"] = "\n".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return [*results, message]
