"""Base classes of request schemas: bounded types, unknown fields.

The bounds on lists and objects are far above real requests and limit validation, which holds the
GIL, to a few milliseconds. The total number of values in a body is also bounded
(`http/middleware.py`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticKnownError

from ..http.unsupported import MAX_FIELDS, MAX_NAME_CHARS, check_supported, ignore_fields

MAX_ITEMS = 10_000  # maximum number of messages, input items, content parts or tool calls
MAX_SHORT_ITEMS = 512  # maximum number of tools or stop strings
MAX_KEYS = 4096  # maximum number of keys per object
MAX_TOKEN_IDS = 1_000_000

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
    """Name of an ignored value for `ignore_fields`; the path alone if it is not a string."""
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
