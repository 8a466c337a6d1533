"""What pydantic found wrong with a body, in one sentence."""

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import ApiError, bad_request
from .unsupported import unsupported_field_message, unsupported_value_message

# pydantic's name of an error, and our words for it; `{…}` are the error's own details.
MESSAGES = {
    "extra_forbidden": "{field} is not a field that this server knows; leave it out.",
    "missing": "{field} is missing; it is required.",
    "json_invalid": "The body is not valid JSON.",
}


# OpenAI's codes where it has one for an error; for others, pydantic's name of it is the code.
CODES = {"extra_forbidden": "unknown_parameter", "missing": "missing_required_parameter"}


def validation_error(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The error for a body that is refused.

    Args:
        errors: as pydantic lists them. The one that is deepest in the body is told: where a field
            may have several types, the others only say that it is not of theirs.
    """
    if any(error["type"] == "json_invalid" for error in errors):
        return bad_request(MESSAGES["json_invalid"])
    error = max(errors, key=lambda one: (len(one["loc"]), one["loc"][-1] == "type"))
    field = _path(error["loc"], error["type"] == "extra_forbidden")
    if error["type"] in ("literal_error", "union_tag_invalid") and "content" in error["loc"]:
        return _not_a_text(error, field.removesuffix(".type"))
    if error["type"] == "extra_forbidden" and (reason := unsupported_field_message(field)):
        return bad_request(reason, field, "unsupported_parameter")
    if error["type"] == "literal_error":
        allowed = error.get("ctx", {}).get("expected")
        if reason := unsupported_value_message(field, error["input"], allowed):
            return bad_request(reason, field, "unsupported_value")
    if error["type"] in MESSAGES:
        return bad_request(
            MESSAGES[error["type"]].format(field=field), field, CODES.get(error["type"])
        )
    reason = str(error["msg"])
    text = reason[:1].lower() + reason[1:]
    return bad_request(f"{field} is not valid: {text.rstrip('.')}.", field, error["type"])


def _not_a_text(error: Mapping[str, Any], field: str) -> ApiError:
    """The error for a part of a message that is an image, a sound or the like."""
    given = error["input"]
    kind = given.get("type") if isinstance(given, Mapping) else given
    return bad_request(
        f"{field} is of the type {str(kind)[:60]!r}; this model reads texts only.", field
    )


# pydantic tells in a place which of several types it tried: a kind of a part, or a plain type.
PART_TYPES = (
    "text",
    "thinking",
    "redacted_thinking",
    "document",
    "tool_use",
    "tool_result",
    "refusal",
)
PRIMITIVE_TYPES = ("str", "int", "bool")


def _path(location: Sequence[Any], is_unknown: bool) -> str:
    """A place in the body, such as `messages[0].content`; the body itself is `body`.

    Args:
        location: pydantic's, which begins with "body".
        is_unknown: whether its last step is the name of an unknown field, whatever that is.
    """
    path, steps = "", location[1:]
    for place, step in enumerate(steps):
        is_name = place == 0 or (is_unknown and place == len(steps) - 1)
        if isinstance(step, int):
            path += f"[{step}]"
        elif is_name or not _is_type(step, steps[place - 1]):
            path += f".{step[:60]}" if path else step[:60]
    return path or "body"


def _is_type(step: str, last: Any) -> bool:
    """Whether a step of a place, after another one, is a type that was tried."""
    is_python = "[" in step or "(" in step or step[:1].isupper()
    return is_python or step in PRIMITIVE_TYPES or (step in PART_TYPES and isinstance(last, int))
