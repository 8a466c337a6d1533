"""Request schema of `POST /v1/chat/completions`; OpenAI's sampling fields."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from ...engine.inputs.chat_template import EFFORT_VARIABLE
from ...engine.inputs.sampling_params import SamplingParams, StructuredOutputs
from ...engine.structured_output.compiler import MAX_GRAMMAR_CHARS
from ..http.errors import bad_request
from ..protocol.prompts import THINKING_VARIABLE
from ..protocol.request_fields import (
    INT64_MAX,
    BoundedDict,
    BoundedList,
    CommonFields,
    CommonToolChoice,
    JsonObject,
    OutputConstraint,
    PositiveInt,
    ReasoningEffort,
    RequestModel,
    ShortList,
    format_constraint,
    make_constraint,
    make_sampling_params,
    replace_media,
)

GrammarText = Annotated[str, Field(max_length=MAX_GRAMMAR_CHARS)]


class StructuredOutputsFields(RequestModel):
    """Constraint on the output, as in vLLM. Exactly one field must be set."""

    json_: Annotated[JsonObject | bool | str | None, Field(alias="json")] = None
    regex: GrammarText | None = None
    choice: BoundedList[str] | None = None
    grammar: GrammarText | None = None
    json_object: bool | None = None

    def constraint(self) -> StructuredOutputs:
        fields = self.model_dump(by_alias=True, exclude_none=True)
        return make_constraint("structured_outputs", **fields)


class JsonSchemaFormat(RequestModel):
    name: str | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(RequestModel):
    """Output format. `schema`, with type `json_object`, is a llama.cpp extension."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None

    def constraint(self) -> StructuredOutputs | None:
        if self.type != "json_schema":
            return format_constraint("response_format", self.type, self.schema_)
        given = self.json_schema or JsonSchemaFormat()
        param = "response_format.json_schema"
        return format_constraint(param, self.type, given.schema_, bool(given.strict))


class StreamOptions(RequestModel):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # requires `include_usage`, as in vLLM


class SamplingFields(CommonFields):
    stop_token_ids: BoundedList[Annotated[int, Field(ge=0, le=INT64_MAX)]] | None = None
    n: Annotated[int, Field(ge=1, le=1024)] | None = None
    logit_bias: BoundedDict[Annotated[float, Field(ge=-100, le=100)]] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None
    structured_outputs: StructuredOutputsFields | None = None
    response_format: ResponseFormat | None = None
    include_stop_str_in_output: bool | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    add_special_tokens: bool | None = None
    stream_options: StreamOptions | None = None

    def response_constraint(self) -> StructuredOutputs | None:
        return None if self.response_format is None else self.response_format.constraint()

    def sampling_params(
        self,
        defaults: Mapping[str, Any],
        max_tokens: int | None,
        logprobs: int | None,
        constraint: OutputConstraint | None = None,
        prompt_logprobs: int | None = None,
    ) -> SamplingParams:
        if self.structured_outputs is not None:
            if constraint is not None:
                raise bad_request(
                    "structured_outputs conflicts with another output constraint; set only one.",
                    "structured_outputs",
                )
            constraint = self.structured_outputs.constraint()
        return make_sampling_params(
            defaults,
            **self.shared_params(max_tokens),
            structured_outputs=constraint,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            min_tokens=self.min_tokens,
            stop_token_ids=self.stop_token_ids,
            n=self.n,
            logit_bias=_parse_logit_bias(self.logit_bias),
            include_stop_str_in_output=self.include_stop_str_in_output,
        )

    def check_fields(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options requires stream: true.", "stream_options")
        if self.stream and self.prompt_logprobs is not None:
            raise bad_request(
                "prompt_logprobs cannot be combined with stream: true; remove one of them.",
                "prompt_logprobs",
            )


def _parse_logit_bias(given: Mapping[str, float] | None) -> dict[int, float] | None:
    if given is None:
        return None
    for token in given:
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            raise bad_request(
                f"logit_bias keys must be token ids, got {token[:40]!r}.", "logit_bias"
            )
    return {int(token): bias for token, bias in given.items()}


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
