"""Base class of request schemas, and lists and objects of bounded size.

The bounds are far above real requests and limit validation, which holds the GIL, to a few
milliseconds. The total number of values in a body is also bounded (`http/middleware.py`).
"""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticKnownError

from ...engine.structured_output.compiler import MAX_GRAMMAR_CHARS

MAX_ITEMS = 10_000  # messages, input items, content parts, tool calls
MAX_SHORT_ITEMS = 512  # tools, stop strings
MAX_KEYS = 4096  # per object
MAX_TOKEN_IDS = 1_000_000

T = TypeVar("T")


def _check_keys(value: Any) -> Any:
    """Rejects an object with too many keys before its values are validated."""
    if isinstance(value, dict) and len(value) > MAX_KEYS:
        sizes = {"max_length": MAX_KEYS, "actual_length": len(value)}
        raise PydanticKnownError("too_long", {"field_type": "Dictionary", **sizes})
    return value


# `fail_fast` reports only the first invalid element, because each error takes a kilobyte.
BoundedList = Annotated[list[T], Field(max_length=MAX_ITEMS, fail_fast=True)]
ShortList = Annotated[list[T], Field(max_length=MAX_SHORT_ITEMS, fail_fast=True)]
BoundedDict = Annotated[dict[str, T], Field(max_length=MAX_KEYS), BeforeValidator(_check_keys)]
JsonObject = BoundedDict[Any]
GrammarText = Annotated[str, Field(max_length=MAX_GRAMMAR_CHARS)]
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
TokenIds = Annotated[list[TokenId], Field(max_length=MAX_TOKEN_IDS, fail_fast=True)]


class StrictModel(BaseModel):
    """Base class of request schemas: rejects unknown fields and type coercion."""

    model_config = ConfigDict(extra="forbid", strict=True)

    # Needed because each unknown field produces a separate error.
    _check_keys = model_validator(mode="before")(_check_keys)
