"""Base classes of request schemas: bounded types, unknown fields, unsupported content.

The bounds on lists and objects are far above real requests and limit validation, which holds the
GIL, to a few milliseconds. The total number of values in a body is also bounded
(`http/middleware.py`).
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from itertools import chain, islice
from typing import Annotated, Any, Self, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticKnownError

from ..http.errors import bad_request, current_record
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
