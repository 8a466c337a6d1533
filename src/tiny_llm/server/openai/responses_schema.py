"""`POST /v1/responses`: what a client may send. Nothing is stored between two requests."""

import logging
from typing import Annotated, Any, Literal

from pydantic import Field

from ...engine.inputs.structured_outputs import StructuredOutputs, ToolCalls
from ..http.errors import bad_request
from ..http.unsupported import CONTEXT_NOT_EDITED, warn_once
from ..protocol.reasoning_effort import ReasoningEffort
from ..protocol.sampling import (
    CommonFields,
    OutputConstraint,
    PositiveInt,
    StrictModel,
    auto_tool_calls,
    make_constraint,
)
from .responses_input import to_chat_messages

log = logging.getLogger("tiny_llm.server")

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
# Values of `include`. The others are about tools that a server runs, and images: there are none.
Included = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class Reasoning(StrictModel):
    """How much the model thinks. There are no summaries, which "auto" leaves to the server."""

    effort: ReasoningEffort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None
    context: str | None = None
    mode: Literal["standard"] | None = None


class TextFormat(StrictModel):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None
    description: str | None = None


class TextOptions(StrictModel):
    """How an answer is written."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ResponseStreamOptions(StrictModel):
    """What a stream contains besides the answer: nothing."""

    include_obfuscation: Literal[False] | None = None


class ResponsesRequest(CommonFields):
    """The body of a request. Tools and items of unknown types are left out, with a warning."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: PositiveInt | None = None
    max_tool_calls: PositiveInt | None = None  # of tools that a server runs, and this one runs none
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    store: bool | None = None
    include: list[Included] | None = None
    client_metadata: dict[str, Any] | None = None
    context_management: list[dict[str, Any]] | None = None
    service_tier: Literal["auto", "default"] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: dict[str, Any] | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    stream_options: ResponseStreamOptions | None = None

    @property
    def effort(self) -> ReasoningEffort | None:
        """See `CommonFields`."""
        return None if self.reasoning is None else self.reasoning.effort

    def check_supported(self) -> None:
        """Refuses what this server cannot do.

        Raises:
            ApiError: the first such field.
        """
        if self.previous_response_id is not None:
            raise bad_request(
                "previous_response_id is not supported: this server keeps no responses; send the "
                "whole conversation as input.",
                "previous_response_id",
            )
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options needs stream: true.", "stream_options")
        if self.background:
            raise bad_request("background is not supported; leave it out.", "background")
        if self.truncation == "auto":
            raise bad_request(
                "truncation 'auto' is not supported: prompts are not cut.", "truncation"
            )
        if self.context_management:
            warn_once(CONTEXT_NOT_EDITED)
        wants_call = self.tool_choice not in (None, "auto", "none")
        if wants_call and not self.function_tools:
            raise bad_request("tool_choice asks for a call, and there are no tools.", "tool_choice")
        self._check_choice()
        for number, tool in enumerate(self.tools or ()):
            if tool.get("type") != "function":
                log.warning("tools[%d] of type %.40r is left out", number, tool.get("type"))

    def _check_choice(self) -> None:
        choice = self.tool_choice
        if choice in (None, "auto", "none", "required"):
            return
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            names, mode = self._allowed_names or [], choice.get("mode")
            known = {tool["function"]["name"] for tool in self.function_tools}
            if names and known.issuperset(names) and mode in ("auto", "required"):
                return
            raise bad_request(
                "tool_choice of the type allowed_tools needs the mode 'auto' or 'required', and "
                "tools that are among those of the request.",
                "tool_choice",
            )
        if not (isinstance(choice, dict) and isinstance(choice.get("name"), str)):
            raise bad_request(
                "tool_choice must be 'auto', 'none', 'required' or a function with its name.",
                "tool_choice",
            )

    @property
    def _allowed_names(self) -> list[Any] | None:
        """The tools that tool_choice leaves; None for all."""
        choice = self.tool_choice
        if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
            return None
        listed = choice.get("tools")
        tools = listed if isinstance(listed, list) else []
        names = [tool.get("name") for tool in tools if isinstance(tool, dict)]
        return [str(name) for name in names]

    @property
    def usable_tools(self) -> list[dict[str, Any]]:
        """The tools that the model may call."""
        if self.tool_choice == "none":
            return []
        names = self._allowed_names
        found = self.function_tools
        return [one for one in found if names is None or one["function"]["name"] in names]

    def constraint(self) -> OutputConstraint | None:
        """The form that the answer must have; None if it is free.

        Raises:
            ApiError: a schema or a tool is missing, or two fields ask for a form.
        """
        wanted = self.text.format if self.text is not None else None
        choice = self.tool_choice
        is_some = self._allowed_names is not None
        mode = choice["mode"] if isinstance(choice, dict) and is_some else choice
        if mode in (None, "auto", "none"):
            constraint = None if wanted is None else _text_constraint(wanted)
            if constraint is not None or self.ignore_eos:
                return constraint
            return auto_tool_calls(self.usable_tools, self.parallel_tool_calls)
        name = choice["name"] if isinstance(choice, dict) and not is_some else None
        if wanted is not None and wanted.type != "text":
            raise bad_request("tool_choice and text.format both ask for a form.", "text.format")
        parallel = name is None and self.parallel_tool_calls is not False
        fields: dict[str, Any] = {"choice": "required", "name": name, "parallel": parallel}
        return make_constraint(ToolCalls, "tool_choice", self.usable_tools, **fields)

    @property
    def logprobs(self) -> int | None:
        """How many alternatives are told for each token of a text; None for no log-probability."""
        if self.top_logprobs is not None or LOGPROBS in (self.include or ()):
            return self.top_logprobs or 0
        return None

    @property
    def include_encrypted_reasoning(self) -> bool:
        """Whether thoughts are told in the field in which clients send them back."""
        return ENCRYPTED in (self.include or ())

    @property
    def function_tools(self) -> list[dict[str, Any]]:
        """The tools that are functions, in the form that chat templates read."""
        found = []
        for number, tool in enumerate(self.tools or ()):
            if tool.get("type") != "function":
                continue  # `check_supported` has warned
            if not isinstance(tool.get("name"), str):
                raise bad_request(f"tools[{number}] has no name.", f"tools[{number}].name")
            keys = ("name", "description", "parameters")
            function = {key: tool[key] for key in keys if tool.get(key) is not None}
            found.append({"type": "function", "function": function})
        return found

    @property
    def uses_tools(self) -> bool:
        """Whether the model may call tools."""
        return bool(self.usable_tools)

    def template_variables(self) -> dict[str, Any]:
        """What the chat template is told."""
        return {} if self.effort is None else {"enable_thinking": self.effort != "none"}

    def to_template_messages(self) -> list[dict[str, Any]]:
        """The conversation with the keys that chat templates read.

        Raises:
            ApiError: an item is not as its type has it, or there is none.
        """
        return to_chat_messages(self.input, self.instructions)


def _text_constraint(wanted: TextFormat) -> StructuredOutputs | None:
    if wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return make_constraint(StructuredOutputs, "text.format", json_object=True)
    if wanted.schema_ is None:
        raise bad_request("text.format.schema is missing.", "text.format")
    return make_constraint(StructuredOutputs, "text.format", json=wanted.schema_)
