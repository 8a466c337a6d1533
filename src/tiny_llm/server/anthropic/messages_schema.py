"""`POST /v1/messages`: what a client of Anthropic's protocol may send."""

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

# Claude Code begins its system prompt with a line that changes; it would cost the cached prefix.
BILLING_HEADER = "x-anthropic-billing-header"


class TextBlock(CacheableModel):
    """A text."""

    type: Literal["text"]
    text: str
    citations: list[Any] | None = None


class ThinkingBlock(CacheableModel):
    """What the model thought in an earlier turn."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(CacheableModel):
    """What a model thought and does not tell; there is nothing to read in it."""

    type: Literal["redacted_thinking"]
    data: str


class PlainTextSource(StrictModel):
    """Where the text of a document is: in the request."""

    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: str


class DocumentBlock(CacheableModel):
    """A document that is a text; other kinds are not understood."""

    type: Literal["document"]
    source: PlainTextSource
    title: str | None = None
    context: str | None = None
    citations: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The document with what is known of it."""
        return "\n".join(filter(None, (self.title, self.context, self.source.data)))


class ToolUseBlock(CacheableModel):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


class ToolResultBlock(CacheableModel):
    """What a call returned."""

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
    """What one side said; Claude Code writes as the system between two turns, too."""

    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


class ThinkingConfig(StrictModel):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(StrictModel):
    """The form of an answer."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(StrictModel):
    """How much work an answer may be, and its form."""

    effort: ReasoningEffort | None = None
    format: OutputFormat | None = None


class ContextEdit(StrictModel):
    """What is to be left out of the conversation: thoughts of earlier turns, and nothing else.

    Templates of thinking models leave them out; Claude Code asks for it in words of its own.
    """

    type: Literal["clear_thinking_20251015"]
    keep: Any = None


class ContextManagement(StrictModel):
    """How the conversation is to be edited."""

    edits: list[ContextEdit] | None = None


class BillingPolicy(StrictModel):
    """Who pays: nobody else than the one who asks."""

    type: Literal["billing_policy"]
    bill_to: Literal["self"] | None = None


class Diagnostics(StrictModel):
    """Asks why the cache did not have all that an earlier answer left in it."""

    previous_message_id: str | None = None


class CountTokensRequest(CacheableModel):
    """The body of a request whose tokens are counted."""

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
        """Refuses what this server cannot do.

        Raises:
            ApiError: the first such field.
        """
        if self.context_management is not None and self.context_management.edits:
            warn_once(CONTEXT_NOT_EDITED)
        if self.tool_choice is not None and not self.tools and self.tool_choice.type != "none":
            raise bad_request("tool_choice is about tools, and there are none.")

    def constraint(self) -> OutputConstraint | None:
        """The form that the answer must have; None if it is free.

        Raises:
            ApiError: there is no tool of that name, or two fields ask for a form.
        """
        choice = self.tool_choice
        wanted = self.output_config.format if self.output_config is not None else None
        if choice is None or choice.type not in ("any", "tool"):
            if wanted is None:
                parallel = choice is None or not choice.disable_parallel_tool_use
                return auto_tool_calls(self.openai_tools() if self.uses_tools else [], parallel)
            return make_constraint(StructuredOutputs, "output_config.format", json=wanted.schema_)
        if wanted is not None:
            raise bad_request("tool_choice and output_config.format both ask for a form.")
        if choice.type == "tool" and choice.name is None:
            raise bad_request("tool_choice.name is missing; it is required for a tool.")
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
        """Whether the model may call tools."""
        return bool(self.tools) and (self.tool_choice is None or self.tool_choice.type != "none")

    @property
    def continue_final_message(self) -> bool:
        """Whether the last turn is the beginning of the answer, which Anthropic calls prefill."""
        last = self.messages[-1]
        if last.role != "assistant":
            return False
        return isinstance(last.content, str) or all(isinstance(b, TextBlock) for b in last.content)

    @property
    def wants_thinking(self) -> bool:
        """Whether thinking was asked for."""
        return self.thinking is not None and self.thinking.type != "disabled"

    @property
    def omit_reasoning(self) -> bool:
        """Whether thoughts are told without what was thought."""
        return self.thinking is not None and self.thinking.display == "omitted"

    def openai_tools(self) -> list[dict[str, Any]]:
        """The tools in the form that chat templates read."""
        return [tool.openai_tool() for tool in self.tools or ()]

    def to_template_messages(self) -> list[dict[str, Any]]:
        """The conversation with the keys that chat templates read."""
        system = "\n".join(filter(None, map(_strip_billing_header, _texts(self.system))))
        messages = [{"role": "system", "content": system}] if system else []
        for turn in self.messages:
            messages += _to_messages(turn)
        return messages


class MessagesRequest(CountTokensRequest):
    """The body of a request."""

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
        """Tokens that the thoughts may have; None for no bound."""
        tokens = None if self.thinking is None else self.thinking.budget_tokens
        effort = None if self.output_config is None else self.output_config.effort
        return thinking_budget(tokens, effort, self.max_tokens) if self.wants_thinking else None

    @property
    def wants_diagnostics(self) -> bool:
        """Whether the answer must say why the cache had less than it could have."""
        asked = self.diagnostics
        return asked is not None and asked.previous_message_id is not None

    def check_supported(self) -> None:
        """Refuses what this server cannot do.

        Raises:
            ApiError: the first such field.
        """
        super().check_supported()
        if self.thread is not None:  # the client reads the code, and goes on without a thread
            raise bad_request(
                f"thread is not supported: {STATELESS}.", "thread", "thread_unsupported_request"
            )


def _texts(content: str | list[TextBlock] | None) -> list[str]:
    if content is None or isinstance(content, str):
        return [content or ""]
    return [block.text for block in content]


def _strip_billing_header(text: str) -> str:
    """The same without its first line, if that is the one that changes."""
    return text.partition("\n")[2] if text.startswith(BILLING_HEADER) else text


def _to_messages(turn: MessageParam) -> list[dict[str, Any]]:
    """A turn as messages: results of tools are messages of their own."""
    if isinstance(turn.content, str):
        return [{"role": turn.role, "content": turn.content}]
    results, texts, thoughts, calls = [], [], [], []
    for block in turn.content:
        match block:
            case TextBlock() | DocumentBlock():
                texts.append(block.text)
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case ToolUseBlock():
                arguments = json.dumps(block.input, ensure_ascii=False)
                function = {"name": block.name, "arguments": arguments}
                calls.append({"id": block.id, "type": "function", "function": function})
            case ToolResultBlock():
                told = "\n".join(_texts(block.content))
                failed = "Error: " * bool(block.is_error)  # templates know no other way to say so
                results.append({"role": "tool", "content": failed + told})
    if not (texts or thoughts or calls):
        return results
    message: dict[str, Any] = {"role": turn.role, "content": "\n".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return [*results, message]
