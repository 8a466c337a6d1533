"""Request fields of all protocols: bounds, unknown fields, tool choice.

The bounds on lists and objects are far above real requests and limit validation, which holds the
GIL, to a few milliseconds. The total number of values in a body is also bounded
(`http/middleware.py`).
"""

import logging
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from typing import Annotated, Any, Literal, Self, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticKnownError

from ...engine.inputs.sampling_params import SamplingParams, StructuredOutputs, ToolCalls
from ..http.errors import bad_request, current_record, user_errors_as_400
from ..http.unsupported import ERROR_CODES, FIELD_REASONS, MEDIA_TYPES, OFF_VALUES

log = logging.getLogger("tiny_llm.server")

MAX_ITEMS = 10_000  # maximum number of messages, input items, content parts or tool calls
MAX_SHORT_ITEMS = 512  # maximum number of tools or stop strings
MAX_KEYS = 4096  # maximum number of keys per object
MAX_TOKEN_IDS = 1_000_000
MAX_FIELDS = 32  # maximum number of ignored fields named per request
MAX_NAME_CHARS = 100  # maximum length of an ignored field's name
MAX_LOGGED_FIELDS = 1000  # maximum number of ignored fields named in the log

_logged: set[tuple[str, str]] = set()  # paths of endpoints and fields

T = TypeVar("T")


def _check_keys(value: Any) -> Any:
    """Rejects an object with too many keys before its values are validated."""
    if isinstance(value, dict) and len(value) > MAX_KEYS:
        sizes = {"max_length": MAX_KEYS, "actual_length": len(value)}
        raise PydanticKnownError("too_long", {"field_type": "Dictionary", **sizes})
    return value


# `fail_fast` reports only the first invalid element; an error object takes about a kilobyte.
BoundedList = Annotated[list[T], Field(max_length=MAX_ITEMS, fail_fast=True)]
ShortList = Annotated[list[T], Field(max_length=MAX_SHORT_ITEMS, fail_fast=True)]
BoundedDict = Annotated[dict[str, T], Field(max_length=MAX_KEYS), BeforeValidator(_check_keys)]
JsonObject = BoundedDict[Any]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenIds = Annotated[list[TokenId], Field(max_length=MAX_TOKEN_IDS, fail_fast=True)]
PromptIds = Annotated[TokenIds, Field(min_length=1)]


class RequestModel(BaseModel):
    """Base class of request schemas: accepts unknown fields, rejects type coercion."""

    model_config = ConfigDict(extra="allow", strict=True)


class RequestBody(RequestModel):
    """Base class of request bodies: names and removes unknown fields at any depth."""

    model: str | None = None
    # No-ops that clients may always send; responses contain them where the protocol says so.
    user: str | None = None
    metadata: JsonObject | None = None

    @model_validator(mode="after")
    def _ignore_unknown_fields(self) -> Self:
        check_supported(self.__pydantic_extra__ or {})
        paths: dict[str, None] = {}
        _remove_unknown_fields(self, "", paths)
        ignore_fields(chain(paths, self.ignored_values()))
        return self

    def check_fields(self) -> None:
        """Checks combinations of fields; raises an `ApiError` (400)."""

    def ignored_values(self) -> Iterable[str]:
        """Ignored values, and unknown fields of objects without a schema; see `ignore_fields`."""
        return ()


def value_path(path: str, value: Any) -> str:
    """Name of an ignored value for `ignore_fields`: `path=value` for a string, else the path."""
    return f"{path}={value[:MAX_NAME_CHARS]}" if isinstance(value, str) else path


def as_prompt_list(given: str | list[int] | list[str] | list[list[int]]) -> list[str | list[int]]:
    """Wraps a single prompt, given as text or token ids, in a list."""
    if isinstance(given, str) or isinstance(given[0], int):
        return [given]
    return list(given)


def unknown_fields(
    given: Mapping[str, Any], prefix: str, known: Collection[str] = ()
) -> Iterator[str]:
    """Yields the paths of fields outside `known`, unless they are null or an empty list."""
    for name, value in given.items():
        if name not in known and value is not None and value != []:
            yield prefix + name[:MAX_NAME_CHARS]


def _remove_unknown_fields(model: RequestModel, prefix: str, paths: dict[str, None]) -> None:
    """Removes unknown fields, so that no dump contains them; adds their paths to `paths`."""
    unknown = model.__pydantic_extra__
    if unknown:
        if len(paths) < MAX_FIELDS:
            paths.update(dict.fromkeys(islice(unknown_fields(unknown, prefix), MAX_FIELDS)))
        unknown.clear()
    for name in type(model).model_fields:
        value = model.__dict__[name]
        if isinstance(value, RequestModel):
            _remove_unknown_fields(value, f"{prefix}{name}.", paths)
        elif isinstance(value, list) and not isinstance(next(iter(value), 0), int):
            for item in value:
                if isinstance(item, RequestModel):
                    _remove_unknown_fields(item, f"{prefix}{name}[].", paths)


def ignore_fields(fields: Iterable[str]) -> None:
    """Names ignored fields: in the log once per process, and in the response's header.

    Args:
        fields: paths without list indexes, e.g. `messages[].clear_at`; `path=value` if only the
            value is ignored. Characters outside printable ASCII are percent-encoded.
    """
    names: dict[str, None] = {}
    for field in fields:
        name = quote(field[:MAX_NAME_CHARS], "[]=.", errors="replace")[:MAX_NAME_CHARS]
        names[name] = None
        if len(names) == MAX_FIELDS:
            break
    if not names:
        return
    record = current_record()
    if record.strict_fields:
        name = next(iter(names))
        raise bad_request(f"{name} is not a supported field; remove it.", name, "unknown_parameter")
    record.ignored_fields = [*record.ignored_fields, *names]
    new = [name for name in names if (record.path, name) not in _logged]
    if new and len(_logged) < MAX_LOGGED_FIELDS:
        _logged.update((record.path, name) for name in new)
        log.warning("ignored fields of %s: %s", record.path, ", ".join(new))


def check_supported(fields: Mapping[str, Any]) -> None:
    """Rejects those of a body's unknown fields that are in `FIELD_REASONS` and not turned off."""
    for name in FIELD_REASONS.keys() & fields.keys():
        if fields[name] not in (None, False, "", [], OFF_VALUES.get(name)):
            reason = f"{name} is not supported: {FIELD_REASONS[name]}."
            raise bad_request(reason, name, ERROR_CODES.get(name, "unsupported_parameter"))


@cache
def warn_once(sentence: str) -> None:
    log.warning("%s", sentence)


def replace_media(content: Any) -> Any:
    """Replaces images, audio and documents in a tool result with text.

    Agents resend a tool result with every later turn, so rejecting it would end the conversation.
    """
    if not isinstance(content, list):
        return content
    return [_replace_medium(part) for part in content]


def _replace_medium(part: Any) -> Any:
    kind = part.get("type") if isinstance(part, dict) else None
    source = part.get("source") if kind == "document" else None
    is_text = isinstance(source, dict) and source.get("type") == "text"
    medium = MEDIA_TYPES.get(kind) if isinstance(kind, str) and not is_text else None
    if medium is None:
        return part
    warn_once(f"each {medium} in a tool result is replaced with text: the model reads text only")
    return {"type": "text", "text": f"[{medium} omitted: this model reads text only]"}


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]

# Thinking budgets in tokens by effort level, because the models can only turn thinking on or off.
# Higher levels are unlimited, and "none" turns thinking off.
THINKING_BUDGETS = {"minimal": 128, "low": 512, "medium": 2048}
UNLIMITED = -1  # thinking budget without a limit, as in vLLM
NO_SEED = -1  # seed of an unseeded request, as in vLLM


def thinking_budget(
    tokens: int | None, effort: ReasoningEffort | None, max_tokens: int | None
) -> int | None:
    """Returns the maximum number of reasoning tokens; None for no limit.

    Args:
        tokens: the request's explicit thinking budget, which takes precedence; None if not given.
        max_tokens: maximum tokens in the completion; half of them are reserved for the content.
    """
    if tokens is not None:
        return None if tokens == UNLIMITED else tokens
    budget = THINKING_BUDGETS.get(effort or "")
    if budget is None or max_tokens is None:
        return budget
    return min(budget, max_tokens // 2)


INT64_MAX = 2**63 - 1
# Fields passed to `SamplingParams` unchanged.
SAMPLING_FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "ignore_eos"),
)

OutputConstraint = StructuredOutputs | ToolCalls

PositiveInt = Annotated[int, Field(ge=1, le=INT64_MAX)]


class CommonFields(RequestBody):
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=INT64_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=INT64_MAX)] | None = None
    stop: str | ShortList[str] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    ignore_eos: bool | None = None
    thinking_token_budget: Annotated[int, Field(ge=UNLIMITED, le=INT64_MAX)] | None = None
    stream: bool | None = None

    @property
    def effort(self) -> ReasoningEffort | None:
        return None

    def shared_params(self, max_tokens: int | None) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in SAMPLING_FIELDS},
            "max_tokens": max_tokens,
            "thinking_token_budget": thinking_budget(
                self.thinking_token_budget, self.effort, max_tokens
            ),
        }


@dataclass(frozen=True)
class CommonToolChoice:
    """A request's tool choice, in the terms of all protocols."""

    mode: str = "auto"  # "auto", "none" or "required"
    name: str | None = None  # with "required": the only function to call; None for any
    allowed: Set[str] | None = None  # names of the functions the model may call; None for all

    def check(self, names: Collection[str]) -> None:
        """Raises an `ApiError` (400) unless the request's tools, with `names`, allow the choice."""
        if self.mode == "required" and not names:
            raise bad_request("tool_choice requires tools, but tools is empty.", "tool_choice")
        for name in self.allowed or ():
            if name not in names:
                raise bad_request(
                    f"tool_choice allows '{name[:60]}', which is not in tools.", "tool_choice"
                )

    def usable(self, tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the tools the model may call, in the format of chat completions."""
        if self.mode == "none":
            return []
        return [
            tool
            for tool in tools
            if self.allowed is None or tool["function"]["name"] in self.allowed
        ]

    def constraint(
        self,
        tools: list[dict[str, Any]],
        parallel: bool | None,
        response_constraint: StructuredOutputs | None,
    ) -> OutputConstraint | None:
        """Constraint for calls of `tools`; `response_constraint` applies to output without calls.

        With "auto", calls are optional but match their schemas.
        """
        if self.mode == "required":
            parallel = self.name is None and parallel is not False
            with user_errors_as_400("tool_choice"):
                return ToolCalls(tools, choice="required", name=self.name, parallel=parallel)
        if not tools:
            return response_constraint
        parallel = parallel is not False
        with user_errors_as_400("tools"):
            return ToolCalls(
                tools, choice="auto", parallel=parallel, response_constraint=response_constraint
            )


def make_sampling_params(defaults: Mapping[str, Any], **fields: Any) -> SamplingParams:
    """Creates sampling parameters; the request's fields override the defaults."""
    given = {name: value for name, value in fields.items() if value is not None}
    if given.get("seed") == NO_SEED:
        del given["seed"]
    if "seed" in given:
        given["seed"] %= 2**64  # OpenAI allows negative seeds
    chosen: dict[str, Any] = {"max_tokens": None, "clamp_max_tokens": True, **defaults, **given}
    if chosen.get("n", 1) > 1 and "temperature" not in given:
        # With the default temperature of 0, the `n` completions would be identical.
        chosen["temperature"] = chosen.get("temperature") or 1.0
    with user_errors_as_400():
        return SamplingParams(**chosen)


def format_constraint(
    param: str, kind: str, schema: Mapping[str, Any] | None, strict: bool = False
) -> StructuredOutputs | None:
    """Constraint of an output format of type "text", "json_object" or "json_schema"."""
    if kind == "text":
        return None
    if schema is not None:
        return make_constraint(param, json=schema, strict=strict)
    if kind == "json_schema":
        raise bad_request(f"{param}.schema is required.", param)
    return make_constraint(param, json_object=True)


def make_constraint(param: str, **fields: Any) -> StructuredOutputs:
    """Creates a constraint; raises an `ApiError` (400) for `param` if it is not valid."""
    with user_errors_as_400(param):
        return StructuredOutputs(**fields)


def encode_reasoning(reasoning: str) -> str:
    """Encodes reasoning for clients to send back, in Base64 and without encryption."""
    return b64encode(reasoning.encode("utf-8", "replace")).decode()


def decode_reasoning(content: Any) -> str:
    """Inverse of `encode_reasoning`; returns "" for values from other servers."""
    try:
        return b64decode(content, validate=True).decode()
    except (TypeError, ValueError):
        return ""
