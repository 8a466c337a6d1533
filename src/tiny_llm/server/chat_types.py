"""`POST /v1/chat/completions`: what a client may send."""

from typing import Annotated, Any, Literal

from pydantic import Field

from ..engine.structured_outputs import ToolCalls
from .effort import Effort
from .errors import refused
from .sampling import Body, Count, Form, SamplingFields, free_calls, make_form


class TextPart(Body):
    """A part of a message's content; images and sounds are not understood."""

    type: Literal["text"]
    text: str


class RefusalPart(Body):
    """What an assistant refused to do."""

    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        """The same as a text."""
        return self.refusal


AnyPart = Annotated[TextPart | RefusalPart, Field(discriminator="type")]


class Function(Body):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """A tool, which is always a function."""

    type: Literal["function"]
    function: Function


class FunctionCall(Body):
    """A call that the assistant made; `arguments` is JSON."""

    name: str
    arguments: str


class MadeCall(Body):
    """A call that the assistant made, with its id."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None


class ChatMessage(Body):
    """What was said. The last fields are what clients send back of an answer."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[AnyPart] | None = None
    name: str | None = None
    tool_calls: list[MadeCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # a newer name of the same
    refusal: None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None

    def for_template(self, number: int) -> dict[str, Any]:
        """The message with the keys that chat templates read.

        Raises:
            ApiError: it says nothing.
        """
        place = f"messages[{number}]"
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise refused(
                f"{place} has no content; only an assistant's message with tool_calls can do "
                "without.",
                f"{place}.content",
            )
        content = self.content or ""
        if not isinstance(content, str):
            content = "\n".join(part.text for part in content)  # as in vLLM, and in `LLM`
        role = "system" if self.role == "developer" else self.role
        message: dict[str, Any] = {"role": role, "content": content}
        thought = self.reasoning_content if self.reasoning is None else self.reasoning
        if thought is not None:
            message["reasoning_content"] = thought
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = [call.model_dump() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class StreamOptions(Body):
    """What a stream contains besides the answer."""

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None
    continuous_usage_stats: bool | None = None

    @property
    def is_continuous(self) -> bool:
        """Whether each chunk tells the usage so far; vLLM's, which needs `include_usage`."""
        return bool(self.include_usage and self.continuous_usage_stats)


class NamedFunction(Body):
    """A function's name."""

    name: str


class NamedTool(Body):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(Body):
    """Some of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1)]


class SomeTools(Body):
    """A choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


def check_continued(continue_final: bool | None, add_generation: bool | None) -> None:
    """Refuses a conversation that is to go on in two ways.

    Raises:
        ApiError: 400.
    """
    if continue_final and add_generation:
        raise refused(
            "continue_final_message and add_generation_prompt contradict each other; give one.",
            "continue_final_message",
        )


class TemplateVariables(Body):
    """Variables of the chat template that a client may set."""

    enable_thinking: bool | None = None


class ChatBody(SamplingFields):
    """The body of a request."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | SomeTools | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    reasoning_effort: Effort | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: TemplateVariables | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default"] | None = None
    modalities: list[Literal["text"]] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    verbosity: Literal["medium"] | None = None

    @property
    def effort(self) -> Effort | None:
        """See `SharedFields`."""
        return self.reasoning_effort

    def check_honoured(self) -> None:
        """Refuses fields that contradict each other.

        Raises:
            ApiError: the first such field.
        """
        self.check_stream(bool(self.stream), self.stream_options is not None)
        if self.top_logprobs is not None and not self.logprobs:
            raise refused("top_logprobs needs logprobs: true.", "top_logprobs")
        if self.tool_choice not in (None, "auto", "none") and not self.tools:
            raise refused("tool_choice asks for a call, and there are no tools.", "tool_choice")
        check_continued(self.continue_final_message, self.add_generation_prompt)
        known = {tool.function.name for tool in self.tools or ()}
        for name in self._allowed_names or ():
            if name not in known:
                raise refused(f"tool_choice allows '{name}', which is no tool.", "tool_choice")

    def form(self) -> Form | None:
        """The form that the answer must have; None if it is free.

        Raises:
            ApiError: a schema is missing, or two fields ask for a form.
        """
        calls = self._calls()
        wanted = None if self.response_format is None else self.response_format.form()
        if wanted is None:
            return calls or self._free_calls()
        if calls is not None:
            raise refused(
                "tool_choice asks for a call and response_format for a form; give one of them.",
                "response_format",
            )
        return wanted

    def _calls(self) -> ToolCalls | None:
        """Tool calls that were demanded."""
        choice = self.tool_choice
        if isinstance(choice, SomeTools):
            choice = choice.allowed_tools.mode
        if choice in (None, "auto", "none"):
            return None
        name = choice.function.name if isinstance(choice, NamedTool) else None
        return make_form(
            ToolCalls,
            "tool_choice",
            self.usable_tools,
            choice="required",
            name=name,
            parallel=self.parallel_tool_calls is not False and name is None,
        )

    def _free_calls(self) -> ToolCalls | None:
        """Text and calls, as the model likes; None if another field says how the answer ends."""
        if not self.uses_tools or self.structured_outputs or self.ignore_eos or self.min_tokens:
            return None
        return free_calls(self.usable_tools, self.parallel_tool_calls)

    @property
    def _allowed_names(self) -> list[str] | None:
        """The tools that tool_choice leaves; None for all."""
        if not isinstance(self.tool_choice, SomeTools):
            return None
        return [tool.function.name for tool in self.tool_choice.allowed_tools.tools]

    @property
    def usable_tools(self) -> list[dict[str, Any]]:
        """The tools that the model may call, as chat templates read them."""
        if self.tool_choice == "none":
            return []
        names = self._allowed_names
        return [
            tool.model_dump(exclude_none=True)
            for tool in self.tools or ()
            if names is None or tool.function.name in names
        ]

    @property
    def uses_tools(self) -> bool:
        """Whether the model may call tools."""
        return bool(self.usable_tools)

    def template_variables(self) -> dict[str, Any]:
        """What the chat template is told."""
        variables: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            variables["enable_thinking"] = self.reasoning_effort != "none"
        chosen = self.chat_template_kwargs
        if chosen is not None and chosen.enable_thinking is not None:
            variables["enable_thinking"] = chosen.enable_thinking
        return variables
