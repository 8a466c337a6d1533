"""Request schema of `POST /v1/responses`; its input items as chat template messages."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from ...engine.inputs.chat_template import EFFORT_VARIABLE
from ..http.errors import bad_request
from ..http.validation import validation_error
from ..protocol.prompts import THINKING_VARIABLE
from ..protocol.request_fields import (
    BoundedList,
    CommonToolChoice,
    JsonObject,
    OutputConstraint,
    PositiveInt,
    ReasoningEffort,
    RequestModel,
    ShortList,
    decode_reasoning,
    format_constraint,
    replace_media,
    unknown_fields,
    value_path,
)
from .chat_schema import ConversationFields, FunctionDefinition

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"
TEXT_PARTS = ("input_text", "output_text", "text")
PART_FIELDS = {"type", "text", "refusal"}
# Fields of input items, by type.
ITEM_FIELDS = {
    kind: {"type", "id", "status", *names}
    for kind, names in {
        "message": ("role", "content"),
        "function_call": ("call_id", "name", "arguments"),
        "function_call_output": ("call_id", "output"),
        "reasoning": ("content", "encrypted_content"),
        "item_reference": (),
    }.items()
}
TOOL_FIELDS = {"type", *FunctionDefinition.model_fields}


class Reasoning(RequestModel):
    effort: ReasoningEffort | None = None


class TextFormat(RequestModel):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: bool | None = None
    description: str | None = None


class TextOptions(RequestModel):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium"] | None = None


class ResponsesRequest(ConversationFields):
    """Body of POST /v1/responses; tools and items of unknown types are ignored."""

    input: str | BoundedList[JsonObject]
    instructions: str | None = None
    max_output_tokens: PositiveInt | None = None
    tools: ShortList[JsonObject] | None = None
    tool_choice: str | JsonObject | None = None
    reasoning: Reasoning | None = None
    text: TextOptions | None = None
    previous_response_id: str | None = None
    include: ShortList[str] | None = None
    store: bool | None = None
    stream_options: JsonObject | None = None

    @property
    def effort(self) -> ReasoningEffort | None:
        return None if self.reasoning is None else self.reasoning.effort

    def ignored_values(self) -> Iterator[str]:
        if self.text is not None and self.text.verbosity == "low":
            yield "text.verbosity=low"
        yield from unknown_fields(self.stream_options or {}, "stream_options.")
        for value in self.include or ():
            if value not in (LOGPROBS, ENCRYPTED_REASONING):
                yield value_path("include[]", value)
        for tool in self.tools or ():
            if tool.get("type") == "function":
                yield from unknown_fields(tool, "tools[].", TOOL_FIELDS)
            else:
                yield value_path("tools[].type", tool.get("type"))
        if isinstance(self.input, list):
            yield from ignored_item_fields(self.input)

    def check_fields(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options requires stream: true.", "stream_options")
        choice = self.tool_choice
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            allowed = self._choice.allowed or {""}
            if "" in allowed or choice.get("mode") not in ("auto", "required"):
                raise bad_request(
                    "tool_choice of type allowed_tools requires mode 'auto' or 'required' and a "
                    "non-empty subset of the request's tools.",
                    "tool_choice",
                )
        elif choice not in (None, "auto", "none", "required") and not (
            isinstance(choice, dict) and isinstance(choice.get("name"), str)
        ):
            raise bad_request(
                "tool_choice must be 'auto', 'none', 'required' or a named function.", "tool_choice"
            )
        self._choice.check({tool["function"]["name"] for tool in self.function_tools})

    @property
    def _choice(self) -> CommonToolChoice:
        given = self.tool_choice
        if not isinstance(given, dict):
            return CommonToolChoice(given or "auto")
        if given.get("type") != "allowed_tools":
            return CommonToolChoice("required", given.get("name"))
        listed = given.get("tools")
        tools = listed if isinstance(listed, list) else []
        names = {str(tool.get("name") or "") for tool in tools if isinstance(tool, dict)}
        return CommonToolChoice(str(given.get("mode")), allowed=names)

    @cached_property
    def usable_tools(self) -> list[dict[str, Any]]:
        return self._choice.usable(self.function_tools)

    def constraint(self) -> OutputConstraint | None:
        given, choice = (self.text or TextOptions()).format or TextFormat(type="text"), self._choice
        response_constraint = format_constraint(
            "text.format", given.type, given.schema_, bool(given.strict)
        )
        tools = [] if self.ignore_eos and choice.mode != "required" else self.usable_tools
        return choice.constraint(tools, self.parallel_tool_calls, response_constraint)

    @property
    def logprobs(self) -> int | None:
        """Number of alternatives per text token; None for no logprobs."""
        if self.top_logprobs is not None or LOGPROBS in (self.include or ()):
            return self.top_logprobs or 0
        return None

    @cached_property
    def function_tools(self) -> list[dict[str, Any]]:
        functions = []
        for number, tool in enumerate(self.tools or ()):
            if tool.get("type") != "function":
                continue
            function = {key: tool[key] for key in FunctionDefinition.model_fields if key in tool}
            try:
                given = FunctionDefinition.model_validate(function)
            except ValidationError as error:
                path = ("body", "tools", number)
                located = [{**each, "loc": (*path, *each["loc"])} for each in error.errors()]
                raise validation_error(located) from error
            functions.append({"type": "function", "function": given.model_dump(exclude_none=True)})
        return functions

    def template_variables(self) -> dict[str, Any]:
        if self.effort is None:
            return {}
        return {THINKING_VARIABLE: self.effort != "none", EFFORT_VARIABLE: self.effort}


def ignored_item_fields(items: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yields unknown fields and item types; see `RequestBody.ignored_values`."""
    for item in items:
        kind = item.get("type", "message")
        if not isinstance(kind, str) or kind not in ITEM_FIELDS:
            yield value_path("input[].type", kind)
            continue
        yield from unknown_fields(item, "input[].", ITEM_FIELDS[kind])
        for name in ("content", "output"):
            parts = item.get(name)
            for part in parts if isinstance(parts, list) else ():
                if isinstance(part, dict):
                    yield from unknown_fields(part, f"input[].{name}[].", PART_FIELDS)


def to_chat_messages(
    given: str | list[dict[str, Any]], instructions: str | None, num_stored: int = 0
) -> list[dict[str, Any]]:
    """Converts the input to messages; drops items of unknown types.

    The first `num_stored` items come from stored responses; indices in errors do not count them.
    """
    messages: list[dict[str, Any]] = []
    if instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    reasoning = None
    for number, item in enumerate(given, -num_stored):
        path = f"input[{number}]"
        if item.get("type") == "reasoning":
            reasoning = _join_parts(item.get("content") or [], f"{path}.content")
            reasoning = reasoning or decode_reasoning(item.get("encrypted_content"))
            continue
        message = _to_message(item, path)
        if message is None:
            continue
        if reasoning and message["role"] == "assistant":
            message["reasoning_content"] = reasoning
        reasoning = None
        same_turn = bool(messages) and messages[-1]["role"] == "assistant"
        if same_turn and "tool_calls" in message and "reasoning_content" not in message:
            # Chat templates expect a turn's text and calls in one message.
            messages[-1].setdefault("tool_calls", []).extend(message["tool_calls"])
        else:
            messages.append(message)
    if not any(message["role"] != "system" for message in messages):
        raise bad_request("input must contain at least one message.", "input")
    return messages


def _to_message(item: dict[str, Any], path: str) -> dict[str, Any] | None:
    """Converts an item to a message; returns None if its type is unknown."""
    match item.get("type", "message"):
        case "message":
            role = item.get("role")
            if role not in ("user", "assistant", "system", "developer"):
                raise bad_request(
                    f"{path}.role must be user, assistant, system or developer.", f"{path}.role"
                )
            content = _join_parts(item.get("content"), f"{path}.content")
            return {"role": "system" if role == "developer" else role, "content": content}
        case "function_call":
            function = {name: _string(item, name, path) for name in ("name", "arguments")}
            call = {"id": _string(item, "call_id", path), "type": "function", "function": function}
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        case "function_call_output":
            output = replace_media(item.get("output"))
            text = _join_parts(output, f"{path}.output") if output is not None else ""
            call_id = _string(item, "call_id", path)
            return {"role": "tool", "tool_call_id": call_id, "content": text}
    return None


def _string(item: dict[str, Any], name: str, path: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise bad_request(f"{path}.{name} must be a string.", f"{path}.{name}")
    return value


def _join_parts(content: Any, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(f"{path} must be a string or a list of content parts.", path)
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in (*TEXT_PARTS, "reasoning_text") and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind == "refusal" and isinstance(part.get("refusal"), str):
            texts.append(part["refusal"])
        else:
            raise bad_request(
                f"{path}[{number}] must be a text part; the model accepts text only.", path
            )
    return "\n".join(texts)
