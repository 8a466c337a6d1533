"""`POST /v1/messages`: what a client of Anthropic's protocol may send."""

import json
import logging
from typing import Annotated, Any, Literal

from pydantic import Field

from ..engine.structured_outputs import StructuredOutputs, ToolCalls
from .errors import refused
from .sampling import LARGEST, Body, Count, Form, free_calls, make_form
from .unsupported import STATELESS

log = logging.getLogger("tiny_llm.server")

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


class RedactedThinkingBlock(Block):
    """What a model thought and does not tell; there is nothing to read in it."""

    type: Literal["redacted_thinking"]
    data: str


class PlainSource(Body):
    """Where the text of a document is: in the request."""

    type: Literal["text"]
    media_type: Literal["text/plain"]
    data: str


class DocumentBlock(Block):
    """A document that is a text; other kinds are not understood."""

    type: Literal["document"]
    source: PlainSource
    title: str | None = None
    context: str | None = None
    citations: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The document with what is known of it."""
        return "\n".join(filter(None, (self.title, self.context, self.source.data)))


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
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | DocumentBlock
    | ToolUseBlock
    | ToolResultBlock,
    Field(discriminator="type"),
]


class Turn(Body):
    """What one side said; Claude Code writes as the system between two turns, too."""

    role: Literal["user", "assistant", "system"]
    content: str | list[AnyBlock]


class MessagesTool(Block):
    """A tool; only those that the client runs itself are known."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    input_examples: list[dict[str, Any]] | None = None


class ToolChoice(Body):
    """Whether the model must call a tool."""

    type: Literal["auto", "none", "any", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """Whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=0, le=LARGEST)] | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(Body):
    """The form of an answer."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Body):
    """How much work an answer may be, and its form."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountBody(Block):
    """The body of a request whose tokens are counted."""

    model: str | None = None
    messages: Annotated[list[Turn], Field(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    context_management: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    billing_policy: dict[str, Any] | None = None
    speed: Literal["standard"] | None = None
    workspace_id: str | None = None

    def check_honoured(self) -> None:
        """Refuses what this server cannot do.

        Raises:
            ApiError: the first such field.
        """
        if self.context_management:
            log.warning("context_management is left out: what the client sends is not edited")
        if self.tool_choice is not None and not self.tools and self.tool_choice.type != "none":
            raise refused("tool_choice is about tools, and there are none.")

    def form(self) -> Form | None:
        """The form that the answer must have; None if it is free.

        Raises:
            ApiError: there is no tool of that name, or two fields ask for a form.
        """
        choice = self.tool_choice
        wanted = self.output_config.format if self.output_config is not None else None
        if choice is None or choice.type not in ("any", "tool"):
            if wanted is None:
                parallel = choice is None or not choice.disable_parallel_tool_use
                return free_calls(self.openai_tools() if self.uses_tools else [], parallel)
            return make_form(StructuredOutputs, "output_config.format", json=wanted.schema_)
        if wanted is not None:
            raise refused("tool_choice and output_config.format both ask for a form.")
        if choice.type == "tool" and choice.name is None:
            raise refused("tool_choice.name is missing; it is required for a tool.")
        return make_form(
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
    def continues(self) -> bool:
        """Whether the last turn is the beginning of the answer, which Anthropic calls prefill."""
        last = self.messages[-1]
        if last.role != "assistant":
            return False
        return isinstance(last.content, str) or all(isinstance(b, TextBlock) for b in last.content)

    @property
    def thinks(self) -> bool:
        """Whether thinking was asked for."""
        return self.thinking is not None and self.thinking.type != "disabled"

    @property
    def thinking_budget(self) -> int | None:
        """Tokens that the thoughts may have; None for no bound."""
        return self.thinking.budget_tokens if self.thinks and self.thinking else None

    @property
    def omits_thoughts(self) -> bool:
        """Whether thoughts are told without what was thought."""
        return self.thinking is not None and self.thinking.display == "omitted"

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
        system = "\n".join(filter(None, map(_without_changing_line, _texts(self.system))))
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
    diagnostics: dict[str, Any] | None = None
    fallback_credit_token: str | None = None
    thread: dict[str, Any] | None = None

    def check_honoured(self) -> None:
        """Refuses what this server cannot do.

        Raises:
            ApiError: the first such field.
        """
        super().check_honoured()
        if self.thread is not None:  # the client reads the code, and goes on without a thread
            raise refused(
                f"thread is not supported: {STATELESS}.", "thread", "thread_unsupported_request"
            )


def _texts(content: str | list[TextBlock] | None) -> list[str]:
    if content is None or isinstance(content, str):
        return [content or ""]
    return [block.text for block in content]


def _without_changing_line(text: str) -> str:
    """The same without its first line, if that is the one that changes."""
    return text.partition("\n")[2] if text.startswith(CHANGING_LINE) else text


def _turn(turn: Turn) -> list[dict[str, Any]]:
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
