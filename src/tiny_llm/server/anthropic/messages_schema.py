"""Request schema of `POST /v1/messages`."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from ...engine.inputs.structured_outputs import StructuredOutputs, ToolCalls
from ..http.errors import bad_request
from ..http.unsupported import CONTEXT_NOT_EDITED, STATELESS, warn_once
from ..protocol.reasoning_effort import ReasoningEffort, thinking_budget
from ..protocol.sampling import (
    INT64_MAX,
    OutputConstraint,
    PositiveInt,
    StrictModel,
    auto_tool_calls,
    make_constraint,
)
from .tools_schema import CacheableModel, MessagesTool, ToolChoice

# First line of Claude Code's system prompt. It changes per session and defeats prefix caching.
BILLING_HEADER = "x-anthropic-billing-header"


class TextBlock(CacheableModel):
    """Text content."""

    type: Literal["text"]
    text: str
    citations: list[Any] | None = None


class ThinkingBlock(CacheableModel):
    """Reasoning of an earlier turn."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(CacheableModel):
    """Redacted reasoning of an earlier turn; ignored."""

    type: Literal["redacted_thinking"]
    data: str


class PlainTextSource(StrictModel):
    """Inline text of a document."""

    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: str


class DocumentBlock(CacheableModel):
    """A plain-text document. Other kinds are not supported."""

    type: Literal["document"]
    source: PlainTextSource
    title: str | None = None
    context: str | None = None
    citations: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """Title, context and text of the document."""
        return "\n".join(filter(None, (self.title, self.context, self.source.data)))


class ToolUseBlock(CacheableModel):
    """A tool call by the model."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


class ToolResultBlock(CacheableModel):
    """The result of a tool call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None


ContentBlock = Annotated[
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | DocumentBlock
    | ToolUseBlock
    | ToolResultBlock,
    Field(discriminator="type"),
]


class MessageParam(StrictModel):
    """A message. Claude Code also sends system messages between turns."""

    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


class ThinkingConfig(StrictModel):
    """Extended thinking options."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(StrictModel):
    """Output format."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(StrictModel):
    """Output options: effort and format."""

    effort: ReasoningEffort | None = None
    format: OutputFormat | None = None


class ContextEdit(StrictModel):
    """Removes the reasoning of earlier turns; the only supported edit.

    A no-op, because chat templates omit earlier reasoning. Claude Code sends it.
    """

    type: Literal["clear_thinking_20251015"]
    keep: Any = None


class ContextManagement(StrictModel):
    """Edits of the conversation."""

    edits: list[ContextEdit] | None = None


class BillingPolicy(StrictModel):
    """Billing; only `self` is accepted."""

    type: Literal["billing_policy"]
    bill_to: Literal["self"] | None = None


class Diagnostics(StrictModel):
    """Requests the reason for a prefix cache miss after an earlier message."""

    previous_message_id: str | None = None


class CountTokensRequest(CacheableModel):
    """Body of a token count request."""

    model: str | None = None
    messages: Annotated[list[MessageParam], Field(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    context_management: ContextManagement | None = None
    output_config: OutputConfig | None = None
    billing_policy: BillingPolicy | None = None
    speed: Literal["standard"] | None = None
    workspace_id: str | None = None

    def check_supported(self) -> None:
        """Rejects unsupported and conflicting fields.

        Raises:
            ApiError: a field is unsupported or conflicts with another.
        """
        if self.context_management is not None and self.context_management.edits:
            warn_once(CONTEXT_NOT_EDITED)
        if self.tool_choice is not None and not self.tools and self.tool_choice.type != "none":
            raise bad_request("tool_choice requires tools, but tools is empty.")

    def constraint(self) -> OutputConstraint | None:
        """The output constraint; None for unconstrained output.

        Raises:
            ApiError: unknown tool name, or two fields constrain the output.
        """
        choice = self.tool_choice
        output_format = self.output_config.format if self.output_config is not None else None
        if choice is None or choice.type not in ("any", "tool"):
            if output_format is None:
                parallel = choice is None or not choice.disable_parallel_tool_use
                return auto_tool_calls(self.openai_tools() if self.uses_tools else [], parallel)
            schema = output_format.schema_
            return make_constraint(StructuredOutputs, "output_config.format", json=schema)
        if output_format is not None:
            raise bad_request(
                "a required tool call and output_config.format are mutually exclusive."
            )
        if choice.type == "tool" and choice.name is None:
            raise bad_request("tool_choice.name is required for type 'tool'.")
        return make_constraint(
            ToolCalls,
            "tool_choice",
            self.openai_tools(),
            choice="required",
            name=choice.name if choice.type == "tool" else None,
            parallel=choice.type == "any" and not choice.disable_parallel_tool_use,
        )

    @property
    def uses_tools(self) -> bool:
        """Whether the model may call any tool."""
        return bool(self.tools) and (self.tool_choice is None or self.tool_choice.type != "none")

    @property
    def continue_final_message(self) -> bool:
        """Whether the final message is a prefill, which the model continues."""
        last = self.messages[-1]
        if last.role != "assistant":
            return False
        return isinstance(last.content, str) or all(isinstance(b, TextBlock) for b in last.content)

    @property
    def wants_thinking(self) -> bool:
        """Whether thinking is enabled."""
        return self.thinking is not None and self.thinking.type != "disabled"

    @property
    def omit_reasoning(self) -> bool:
        """Whether thinking blocks are returned without their text."""
        return self.thinking is not None and self.thinking.display == "omitted"

    def openai_tools(self) -> list[dict[str, Any]]:
        """Tools in OpenAI's format, for the chat template."""
        return [tool.openai_tool() for tool in self.tools or ()]

    def to_template_messages(self) -> list[dict[str, Any]]:
        """Converts the conversation to chat template messages."""
        system = "\n".join(filter(None, map(_strip_billing_header, _texts(self.system))))
        messages = [{"role": "system", "content": system}] if system else []
        for turn in self.messages:
            messages += _to_messages(turn)
        return messages


class MessagesRequest(CountTokensRequest):
    """Body of a message request."""

    max_tokens: PositiveInt
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31)] | None = None
    stop_sequences: list[Annotated[str, Field(min_length=1)]] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    diagnostics: Diagnostics | None = None
    fallback_credit_token: str | None = None
    thread: dict[str, Any] | None = None

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

    def check_supported(self) -> None:
        """Rejects unsupported and conflicting fields.

        Raises:
            ApiError: a field is unsupported or conflicts with another.
        """
        super().check_supported()
        if self.thread is not None:  # clients fall back on this code
            raise bad_request(
                f"thread is not supported: {STATELESS}.", "thread", "thread_unsupported_request"
            )


def _texts(content: str | list[TextBlock] | None) -> list[str]:
    if content is None or isinstance(content, str):
        return [content or ""]
    return [block.text for block in content]


def _strip_billing_header(text: str) -> str:
    """Removes the billing header, if present."""
    return text.partition("\n")[2] if text.startswith(BILLING_HEADER) else text


def _to_messages(turn: MessageParam) -> list[dict[str, Any]]:
    """Converts a turn to messages; each tool result becomes a separate message."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    results, texts, reasoning, calls = [], [], [], []
    for block in turn.content:
        match block:
            case TextBlock() | DocumentBlock():
                texts.append(block.text)
            case ThinkingBlock():
                reasoning.append(block.thinking)
            case ToolUseBlock():
                arguments = json.dumps(block.input, ensure_ascii=False)
                function = {"name": block.name, "arguments": arguments}
                calls.append({"id": block.id, "type": "function", "function": function})
            case ToolResultBlock():
                content = "\n".join(_texts(block.content))
                prefix = "Error: " if block.is_error else ""  # templates have no error field
                results.append({"role": "tool", "content": prefix + content})
    if not (texts or reasoning or calls):
        return results
    message: dict[str, Any] = {"role": turn.role, "content": "\n".join(texts)}
    if reasoning:
        message["reasoning_content"] = "\n".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return [*results, message]
