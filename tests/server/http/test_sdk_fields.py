"""Each field of the official clients is honored, named as ignored, or rejected with a reason."""

import re
import types
from collections.abc import Iterable, Iterator
from inspect import signature
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin

import anthropic
import openai
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params
from pydantic import ValidationError
from typing_extensions import get_type_hints, is_typeddict

from tiny_llm.server.anthropic.messages_schema import CountTokensRequest, MessagesRequest
from tiny_llm.server.http.errors import ACCESS_RECORD, AccessRecord, ApiError
from tiny_llm.server.http.unsupported import FIELD_REASONS
from tiny_llm.server.http.validation import validation_error
from tiny_llm.server.openai.chat_schema import ChatCompletionRequest
from tiny_llm.server.openai.completions import CompletionRequest
from tiny_llm.server.openai.embeddings import EmbeddingRequest
from tiny_llm.server.openai.responses_schema import (
    ITEM_FIELDS,
    PART_FIELDS,
    TOOL_FIELDS,
    ResponsesRequest,
    to_chat_messages,
)

USER = {"role": "user", "content": "Hello"}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
OPENAI_TOOL = {"type": "function", "function": FUNCTION}
ANTHROPIC_TOOL = {"name": "f", "input_schema": {"type": "object"}}
STREAM = {"stream": True}
MESSAGES = {"messages": [USER], "max_tokens": 9, "tools": [ANTHROPIC_TOOL]}
# Request types of the clients: schema, other fields of the request.
REQUESTS = {
    chat_create_params.CompletionCreateParamsNonStreaming: (
        ChatCompletionRequest,
        {"messages": [USER], "tools": [OPENAI_TOOL], "logprobs": True, **STREAM},
    ),
    completion_create_params.CompletionCreateParamsNonStreaming: (
        CompletionRequest,
        {"prompt": "Hello", **STREAM},
    ),
    response_create_params.ResponseCreateParamsNonStreaming: (
        ResponsesRequest,
        {"input": "Hello", "tools": [{"type": "function", **FUNCTION}], **STREAM},
    ),
    embedding_create_params.EmbeddingCreateParams: (EmbeddingRequest, {"input": "Hello"}),
    message_create_params.MessageCreateParamsNonStreaming: (MessagesRequest, MESSAGES),
    beta_message_create_params.MessageCreateParamsNonStreaming: (MessagesRequest, MESSAGES),
    message_count_tokens_params.MessageCountTokensParams: (CountTokensRequest, MESSAGES),
}
# Rejected fields and values, besides those in FIELD_REASONS.
REJECTIONS = (
    r"accepts text only\.$",
    r"^messages\[\]\.(audio|function_call) must be null, ",  # audio; the deprecated tool calls
    r"^messages\[\]\.role must be .*, got 'function'\.$",
    r"^modalities\[\] must be 'text', ",
    r"^messages\[\]\.tool_calls\[\]\.type must be 'function', ",
    r"^tools\[\]\.type must be .*: the model calls functions, which the client runs\.$",
    r"^tool_choice\.type must be 'function', ",
    r"^tool_choice must be 'auto', ",  # a hosted tool
    r"^tool_choice .* requires mode 'auto' or 'required' and a non-empty subset",
    r"^tool_choice\.allowed_tools\.tools\[\]\.type is required\.$",
    r"verbosity must be 'low' or 'medium', got 'high': ",
    r"^input\[\]\.call_id must be a string\.$",
    r"^input\[\]\.role must be ",  # an item reference without a type
    r"^previous_response_id is not supported: ",
)
# Media in tool results are replaced with text that says so.
REPLACED = r"(input\[\]\.output|messages\[\]\.content\[\]\.content)\[\]\."
SENT_AS_HEADERS = {"betas", "user_profile_id", "workspace_id"}
HEADER = "x-tiny-llm-ignored-fields"
PLAIN_VALUES: dict[Any, Any] = {str: "x", int: 1, float: 0.5, bool: True, object: "x", Any: "x"}


def examples(kind: Any, path: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yields (path without list indexes, value): each alternative, each field on its own."""
    kind = unwrapped(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if depth > 8:
        return
    if is_typeddict(kind):
        hints = get_type_hints(kind, include_extras=True)
        names = [name for name, hint in hints.items() if is_required(kind, name, hint)]
        required = {name: first_example(hints[name], depth) for name in names}
        for name, hint in hints.items():
            for inner, value in examples(hint, f"{path}.{name}", depth + 1):
                yield inner, {**required, name: value}
    elif origin is Literal:
        yield from ((path, value) for value in arguments)
    elif origin in (Union, types.UnionType):
        for alternative in arguments:
            if alternative is not type(None):
                yield from examples(alternative, path, depth)
    elif origin is not None and issubclass(origin, dict):
        yield path, {}
    elif origin is not None and issubclass(origin, Iterable):
        for inner, value in examples(arguments[0], f"{path}[]", depth):
            yield inner, [value]
    elif kind in PLAIN_VALUES:
        yield path, PLAIN_VALUES[kind]


def is_required(kind: Any, name: str, hint: Any) -> bool:
    if get_origin(hint) in (Required, NotRequired):
        return get_origin(hint) is Required
    return name in kind.__required_keys__


def first_example(kind: Any, depth: int) -> Any:
    """A value of a type: a text if possible, else the first example."""
    kind = unwrapped(kind)
    if get_origin(kind) is Union and str in get_args(kind):
        return PLAIN_VALUES[str]
    return next((value for _, value in examples(kind, "", depth + 1)), None)


def unwrapped(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) in (Required, NotRequired) else kind


def schema_fields(schema: dict[str, Any], definitions: dict[str, Any], path: str) -> Iterator[str]:
    """Yields the paths of a JSON schema's fields; ending in `.*` for objects with any fields."""
    if "$ref" in schema:
        yield from schema_fields(definitions[schema["$ref"].rpartition("/")[2]], definitions, path)
    for option in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from schema_fields(option, definitions, path)
    yield path
    if schema.get("type") == "object" and "properties" not in schema:
        yield f"{path}.*"
    if "items" in schema:
        yield from schema_fields(schema["items"], definitions, f"{path}[]")
    for name, value in schema.get("properties", {}).items():
        yield from schema_fields(value, definitions, f"{path}.{name}".lstrip("."))


def known_fields(schema: type) -> set[str]:
    document = schema.model_json_schema()
    known = set(schema_fields(document, document.get("$defs", {}), ""))
    if schema is ResponsesRequest:  # its lists of objects without a schema
        known -= {"input[].*", "tools[].*", "stream_options.*"}
        known |= {f"input[].{name}" for names in ITEM_FIELDS.values() for name in names}
        for field in ("content", "output"):
            known |= {f"input[].{field}[]", *(f"input[].{field}[].{name}" for name in PART_FIELDS)}
        known |= {f"tools[].{name}" for name in TOOL_FIELDS} | {"tools[].parameters.*"}
    return known


def send(schema: type, body: dict[str, Any]) -> tuple[str | None, list[str]]:
    """Validates and converts a body; returns the error, if any, and the ignored fields."""
    record = AccessRecord("/test")
    ACCESS_RECORD.set(record)
    try:
        request = schema.model_validate(body)
        if schema is not EmbeddingRequest:
            request.check_fields()
        if schema is ChatCompletionRequest:
            _ = [message.to_template(number) for number, message in enumerate(request.messages)]
        elif schema is ResponsesRequest:
            to_chat_messages(request.input, None)
        elif issubclass(schema, CountTokensRequest):
            request.to_template_messages()
    except ApiError as error:
        return without_indexes(error.message), []
    except ValidationError as error:
        located = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        return without_indexes(validation_error(located).message), []
    return None, list(record.ignored_fields)


def without_indexes(message: str) -> str:
    return re.sub(r"\[\d+\]", "[]", message)


def is_known(path: str, known: set[str]) -> bool:
    parents = [path[: match.start()] for match in re.finditer(r"\.", path)]
    return path in known or any(f"{parent}.*" in known for parent in parents)


def is_named(path: str, ignored: list[str]) -> bool:
    """Whether the path, a parent, its value or the type of a parent is named as ignored."""
    names = [re.sub(r"(\.type)?=.*", "", name) for name in ignored]
    return any(path == name or path.startswith((f"{name}.", f"{name}[")) for name in names)


def is_explained(error: str) -> bool:
    is_listed = any(error.startswith(f"{name} is not supported: ") for name in FIELD_REASONS)
    return is_listed or any(re.search(pattern, error) for pattern in REJECTIONS)


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_no_field_is_dropped_silently(kind):
    schema, others = REQUESTS[kind]
    known, silent, unexplained = known_fields(schema), set(), set()
    for name, hint in get_type_hints(kind).items():
        for path, value in examples(hint, name):
            is_items = schema is ResponsesRequest and name == "input" and isinstance(value, list)
            given = [*value, USER] if is_items else value
            error, ignored = send(schema, {**others, name: given})
            if error is not None:
                unexplained |= set() if is_explained(error) else {(path, error)}
            elif not (is_known(path, known) or is_named(path, ignored) or re.match(REPLACED, path)):
                silent.add(path)
    assert not unexplained
    assert not silent


def test_every_parameter_through_the_clients(client, claude):
    resources = (client.chat.completions, client.completions, client.responses)
    resources += (claude.messages, claude.beta.messages)
    kinds = [kind for kind in REQUESTS if "NonStreaming" in kind.__name__]
    for resource, kind in zip(resources, kinds, strict=True):
        schema, others = REQUESTS[kind]
        hints, known = get_type_hints(kind), known_fields(schema)
        parameters = signature(resource.create).parameters.keys() & hints.keys() - SENT_AS_HEADERS
        assert len(parameters) > 15
        for name in sorted(parameters):
            path, value = next(iter(examples(hints[name], name)))
            limit = "max_output_tokens" if schema is ResponsesRequest else "max_tokens"
            given = {"model": "demo"} if name == "model" else {name: value}
            body = {**others, "model": "demo", limit: 1, **given}
            body["stream"] = name in ("stream_options", "stream")
            try:
                response = resource.with_raw_response.create(**body)
            except (openai.BadRequestError, anthropic.BadRequestError) as error:
                message = without_indexes(error.body.get("error", error.body)["message"])
                assert is_explained(message), f"{name}: {message}"
            else:
                ignored = response.headers.get(HEADER, "").split(",")
                assert is_known(path, known) or is_named(path, ignored), name
