"""Request schema of `POST /v1/chat/completions`."""

from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ...engine.inputs.chat_template import EFFORT_VARIABLE
from ..http.errors import bad_request
from ..protocol.prompts import THINKING_VARIABLE
from ..protocol.request_fields import (
    BoundedList,
    CommonFields,
    CommonToolChoice,
    JsonObject,
    OutputConstraint,
    PositiveInt,
    ReasoningEffort,
    RequestModel,
    SamplingFields,
    ShortList,
    replace_media,
)


class TextPart(RequestModel):
    type: Literal["text"]
    text: str


class InputTextPart(TextPart):
    """A text content part as in the Responses API."""

    type: Literal["input_text", "output_text"]  # type: ignore[assignment]


class RefusalPart(RequestModel):
    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


ContentPart = Annotated[TextPart | InputTextPart | RefusalPart, Field(discriminator="type")]


class FunctionDefinition(RequestModel):
    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(RequestModel):
    type: Literal["function"]
    function: FunctionDefinition


class FunctionCall(RequestModel):
    name: str
    arguments: str


class MessageToolCall(RequestModel):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class ChatMessage(RequestModel):
    """A message.

    Images, audio and documents in a tool result are replaced with text.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | BoundedList[ContentPart] | None = None
    name: str | None = None
    tool_calls: BoundedList[MessageToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # newer name for reasoning_content
    refusal: str | None = None
    audio: None = None
    function_call: None = None

    @model_validator(mode="before")
    @classmethod
    def _replace_tool_media(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("role") == "tool":
            return {**given, "content": replace_media(given.get("content"))}
        return given

    def to_template(self, number: int) -> dict[str, Any]:
        path = f"messages[{number}]"
        content = self.content
        if content is None and self.role in ("assistant", "tool"):
            content = self.refusal or ""
        if content is None:
            raise bad_request(
                f"{path} has no content; only assistant and tool messages may omit it.",
                f"{path}.content",
            )
        if not isinstance(content, str):
            # `LLM` and vLLM also join parts with newlines.
            content = "\n".join(part.text for part in content)
        message: dict[str, Any] = {"role": self.role, "content": content}
        reasoning = self.reasoning_content if self.reasoning is None else self.reasoning
        if reasoning is not None:
            message["reasoning_content"] = reasoning
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class NamedFunction(RequestModel):
    name: str


class NamedToolChoice(RequestModel):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(RequestModel):
    mode: Literal["auto", "required"]
    tools: Annotated[ShortList[NamedToolChoice], Field(min_length=1)]


class AllowedToolsChoice(RequestModel):
    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def check_continuation(continue_final: bool | None, add_generation: bool | None) -> None:
    if continue_final and add_generation:
        raise bad_request(
            "continue_final_message and add_generation_prompt are mutually exclusive; omit one.",
            "continue_final_message",
        )


class ConversationFields(CommonFields):
    parallel_tool_calls: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def first_call_only(self) -> bool:
        return self.parallel_tool_calls is False


class ChatCompletionRequest(ConversationFields, SamplingFields):
    messages: Annotated[BoundedList[ChatMessage], Field(min_length=1)]
    max_tokens: PositiveInt | None = None
    max_completion_tokens: PositiveInt | None = None
    logprobs: bool | None = None
    tools: ShortList[Tool] | None = None
    tool_choice: (
        Literal["auto", "none", "required"] | NamedToolChoice | AllowedToolsChoice | None
    ) = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    modalities: ShortList[Literal["text"]] | None = None
    verbosity: Literal["low", "medium"] | None = None

    @property
    def effort(self) -> ReasoningEffort | None:
        return self.reasoning_effort

    def ignored_values(self) -> Iterable[str]:
        return ("verbosity=low",) if self.verbosity == "low" else ()

    def check_fields(self) -> None:
        super().check_fields()
        if self.top_logprobs and not self.logprobs:
            raise bad_request("top_logprobs requires logprobs: true.", "top_logprobs")
        self._choice.check({tool.function.name for tool in self.tools or ()})
        check_continuation(self.continue_final_message, self.add_generation_prompt)

    @property
    def _choice(self) -> CommonToolChoice:
        match self.tool_choice:
            case AllowedToolsChoice(allowed_tools=allowed):
                names = {tool.function.name for tool in allowed.tools}
                return CommonToolChoice(allowed.mode, allowed=names)
            case NamedToolChoice(function=function):
                return CommonToolChoice("required", function.name)
        return CommonToolChoice(self.tool_choice or "auto")

    def constraint(self) -> OutputConstraint | None:
        response_constraint, choice = self.response_constraint(), self._choice
        # Tool calls are not constrained if another field constrains the output or its length.
        is_constrained = bool(self.structured_outputs or self.ignore_eos or self.min_tokens)
        if is_constrained and choice.mode != "required":
            return response_constraint
        return choice.constraint(self.usable_tools, self.parallel_tool_calls, response_constraint)

    @cached_property
    def usable_tools(self) -> list[dict[str, Any]]:
        tools = self.tools or ()
        return self._choice.usable([tool.model_dump(exclude_none=True) for tool in tools])

    def template_variables(self) -> dict[str, Any]:
        """Chat template variables; `chat_template_kwargs` take precedence."""
        variables = dict(self.chat_template_kwargs or {})
        if self.reasoning_effort is not None and variables.get(THINKING_VARIABLE) is None:
            variables[THINKING_VARIABLE] = self.reasoning_effort != "none"
        return {EFFORT_VARIABLE: self.reasoning_effort, **variables}
