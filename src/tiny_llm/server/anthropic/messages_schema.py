"""Request schema of `POST /v1/messages`."""

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from ...engine.inputs.structured_outputs import StructuredOutputs
from ..http.errors import bad_request
from ..http.unsupported import (
    CONTEXT_NOT_EDITED,
    STATELESS,
    replace_media,
    unsupported_field_message,
    warn_once,
)
from ..protocol.parsed_output import decode_reasoning
from ..protocol.request_fields import (
    INT64_MAX,
    BoundedList,
    JsonObject,
    OutputConstraint,
    ReasoningEffort,
    ShortList,
    StrictModel,
    auto_tool_calls,
    drop_nulls,
    make_constraint,
    required_tool_calls,
    thinking_budget,
)
from .tools_schema import CacheableModel, MessagesTool, ToolChoice

# Start of the first line of Claude Code's system prompt. The line is removed, because it differs
# per session.
BILLING_HEADER = "x-anthropic-billing-header"


class TextBlock(CacheableModel):
    """Text content."""

    type: Literal["text"]
    text: str
    citations: BoundedList[Any] | None = None


class ThinkingBlock(CacheableModel):
    """Reasoning from an earlier turn."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(CacheableModel):
    """Redacted reasoning from an earlier turn; ignored."""

    type: Literal["redacted_thinking"]
    data: str


class PlainTextSource(StrictModel):
    """A document's inline text."""

    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: str


class DocumentBlock(CacheableModel):
    """A plain-text document; PDF files and other formats are not supported."""

    type: Literal["document"]
    source: PlainTextSource
    title: str | None = None
    context: str | None = None
    citations: JsonObject | None = None

    @property
    def text(self) -> str:
        """The document's title, context and text."""
        return "\n".join(filter(None, (self.title, self.context, self.source.data)))


class SearchResultBlock(CacheableModel):
    """A search result from the client, passed to the model as text."""

    type: Literal["search_result"]
    source: str
    title: str
    content: BoundedList[TextBlock]
    citations: JsonObject | None = None

    @property
    def text(self) -> str:
        """The result's title, source and text."""
        return "\n".join((self.title, self.source, *(block.text for block in self.content)))


ResultPart = Annotated[TextBlock | SearchResultBlock | DocumentBlock, Field(discriminator="type")]


class ToolUseBlock(CacheableModel):
    """A tool call by the model."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: JsonObject
    caller: JsonObject | None = None


class ToolResultBlock(CacheableModel):
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


class MessageParam(StrictModel):
    """A message. Claude Code also sends system messages between turns.

    Images and documents beside a tool result are replaced with text, too, because Claude Code sends
    a tool's PDF file as a separate block.
    """

    role: Literal["user", "assistant", "system"]
    content: str | BoundedList[ContentBlock]

    @field_validator("content", mode="before")
    @classmethod
    def _replace_media(cls, content: Any) -> Any:
        blocks = content if isinstance(content, list) else []
        has_result = any(isinstance(b, dict) and b.get("type") == "tool_result" for b in blocks)
        return replace_media(content) if has_result else content


class ThinkingConfig(StrictModel):
    """Extended thinking options."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(StrictModel):
    """JSON schema that the output must match."""

    type: Literal["json_schema"]
    schema_: Annotated[JsonObject, Field(alias="schema")]


class OutputConfig(StrictModel):
    """Output options: effort and format."""

    effort: ReasoningEffort | None = None
    format: OutputFormat | None = None


class ContextEdit(StrictModel):
    """Removes earlier reasoning: a no-op, because chat templates omit it."""

    type: Literal["clear_thinking_20251015"]
    keep: Any = None


class ContextManagement(StrictModel):
    """Context edits, accepted but ignored; see `ContextEdit`."""

    edits: ShortList[ContextEdit] | None = None


class BillingPolicy(StrictModel):
    """Billing policy; `bill_to` accepts only "self"."""

    type: Literal["billing_policy"]
    bill_to: Literal["self"] | None = None


class Diagnostics(StrictModel):
    """Asks why the request missed the prefix that an earlier message cached."""

    previous_message_id: str | None = None


class CountTokensRequest(CacheableModel):
    """Body of a token count request."""

    model: str | None = None
    messages: Annotated[BoundedList[MessageParam], Field(min_length=1)]
    system: str | BoundedList[TextBlock] | None = None
    tools: ShortList[MessagesTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    context_management: ContextManagement | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # earlier name for output_config.format
    mcp_servers: ShortList[Any] | None = None  # not supported: must be empty
    billing_policy: BillingPolicy | None = None
    speed: Literal["standard"] | None = None
    workspace_id: str | None = None

    _drop_nulls = model_validator(mode="before")(drop_nulls)

    def check_fields(self) -> None:
        """Rejects unsupported fields and combinations of fields."""
        if self.context_management is not None and self.context_management.edits:
            warn_once(CONTEXT_NOT_EDITED)
        if self.mcp_servers:
            message = unsupported_field_message("mcp_servers")
            raise bad_request(str(message), "mcp_servers", "unsupported_parameter")
        if self.output_format is not None and self.output_config_format is not None:
            raise bad_request(
                "output_format and output_config.format are the same option; set only one of them.",
                "output_format",
            )
        choice = self.tool_choice
        if choice is not None and choice.type in ("any", "tool") and not self.tools:
            raise bad_request("tool_choice requires tools, but tools is empty.", "tool_choice")

    def constraint(self) -> OutputConstraint | None:
        """The output constraint; None for unconstrained output.

        Raises:
            ApiError: the tool's name is missing or unknown, or a schema is invalid.
        """
        choice = self.tool_choice
        output_format = self.output_format or self.output_config_format
        response_constraint = None
        if output_format is not None:
            schema = output_format.schema_
            response_constraint = make_constraint(
                StructuredOutputs, "output_config.format", json=schema, strict=False
            )
        parallel = choice is None or not choice.disable_parallel_tool_use
        if choice is None or choice.type not in ("any", "tool"):
            return auto_tool_calls(self.usable_tools, parallel, response_constraint)
        if choice.type == "tool" and choice.name is None:
            raise bad_request("tool_choice.name is required for type 'tool'.")
        name = choice.name if choice.type == "tool" else None
        return required_tool_calls(self.usable_tools, name, parallel)

    @property
    def output_config_format(self) -> OutputFormat | None:
        """The format in `output_config`; None if not given."""
        return None if self.output_config is None else self.output_config.format

    @cached_property
    def usable_tools(self) -> list[dict[str, Any]]:
        """Tools the model may call, in the format of chat completions."""
        if self.tool_choice is not None and self.tool_choice.type == "none":
            return []
        return [tool.openai_tool() for tool in self.tools or ()]

    @property
    def continue_final_message(self) -> bool:
        """Whether the final message is a prefill, which the model continues."""
        last = self.messages[-1]
        if last.role != "assistant":
            return False
        return isinstance(last.content, str) or all(isinstance(b, TextBlock) for b in last.content)

    @property
    def wants_thinking(self) -> bool:
        """Whether the request enables thinking."""
        return self.thinking is not None and self.thinking.type != "disabled"

    @property
    def omit_reasoning(self) -> bool:
        """Whether thinking blocks are returned without their text."""
        return self.thinking is not None and self.thinking.display == "omitted"

    def to_template_messages(self) -> list[dict[str, Any]]:
        """Converts the conversation to chat template messages."""
        system = "\n".join(filter(None, map(_strip_billing_header, _texts(self.system))))
        messages = [{"role": "system", "content": system}] if system else []
        for turn in self.messages:
            messages += _to_messages(turn)
        return messages


class MessagesRequest(CountTokensRequest):
    """Body of a message request."""

    max_tokens: Annotated[int, Field(ge=0, le=INT64_MAX)]
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31)] | None = None
    stop_sequences: ShortList[Annotated[str, Field(min_length=1)]] | None = None
    metadata: JsonObject | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    diagnostics: Diagnostics | None = None
    fallback_credit_token: str | None = None
    thread: JsonObject | None = None

    @property
    def thinking_budget(self) -> int | None:
        """Upper bound on reasoning tokens; None for no bound."""
        tokens = None if self.thinking is None else self.thinking.budget_tokens
        effort = None if self.output_config is None else self.output_config.effort
        return thinking_budget(tokens, effort, self.max_tokens) if self.wants_thinking else None

    @property
    def wants_diagnostics(self) -> bool:
        """Whether the response must contain cache diagnostics."""
        return self.diagnostics is not None and self.diagnostics.previous_message_id is not None

    def check_fields(self) -> None:
        """Rejects unsupported fields and combinations of fields."""
        super().check_fields()
        if self.thread is not None:  # with this error code, clients retry without `thread`
            raise bad_request(
                f"thread is not supported: {STATELESS}.", "thread", "thread_unsupported_request"
            )


def _texts(content: str | Sequence[ResultPart] | None) -> list[str]:
    if content is None or isinstance(content, str):
        return [content or ""]
    return [block.text for block in content]


def _strip_billing_header(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(BILLING_HEADER) else text


def _to_messages(turn: MessageParam) -> list[dict[str, Any]]:
    """Converts a turn to messages; each tool result becomes a separate message."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    results, texts, reasoning, calls = [], [], [], []
    for block in turn.content:
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
                content = "\n".join(_texts(block.content))
                # Marked in the text, because chat templates have no field for errors.
                prefix = "Error: " if block.is_error else ""
                result = {"role": "tool", "tool_call_id": block.tool_use_id}
                results.append({**result, "content": prefix + content})
    if not (texts or reasoning or calls):
        return results
    message: dict[str, Any] = {"role": turn.role, "content": "\n".join(texts)}
    if reasoning:
        message["reasoning_content"] = "\n".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return [*results, message]
