"""pydantic validation errors as one-sentence messages."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import short_repr
from .errors import ApiError, bad_request

# Messages by pydantic error type, formatted with the field's path and the error's context.
MESSAGES = {
    "too_long": "{field} must have at most {max_length} elements, got {actual_length}.",
    "missing": "{field} is required.",
    "union_tag_not_found": "{field}.type is required.",
    "json_invalid": "The body is not valid JSON.",
}

AN_OBJECT, AN_INTEGER, A_NUMBER = "must be an object", "must be an integer", "must be a number"
# Requirements by pydantic error type, formatted with the error's context.
REQUIREMENTS = {
    "list_type": "must be a list",
    "string_type": "must be a string",
    **dict.fromkeys(
        ("dict_type", "mapping_type", "model_type", "model_attributes_type"), AN_OBJECT
    ),
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), AN_INTEGER),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), A_NUMBER),
    **dict.fromkeys(("bool_type", "bool_parsing"), "must be true or false"),
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be greater than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "too_short": "must have {min_length} or more elements",
    "string_too_short": "must have {min_length} or more characters",
    "string_too_long": "must have at most {max_length} characters",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
    "none_required": "must be null",
}

# OpenAI's error codes for `MESSAGES`, by pydantic error type.
CODES = dict.fromkeys(("missing", "union_tag_not_found"), "missing_required_parameter")

# Reasons why a field, given by its path without list indexes, supports only some values.
NO_VERBOSITY = "the model has no verbosity setting; request the desired length in a message"
VALUE_REASONS = {
    "tools[].type": "the model calls functions, which the client runs",
    "verbosity": NO_VERBOSITY,
    "text.verbosity": NO_VERBOSITY,
}


def validation_error(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """Converts pydantic's errors to a 400 error for the most deeply nested one.

    For a union, pydantic reports errors of every alternative. An alternative with a wrong `type`
    field is probably not meant, so its errors are considered last.
    """
    if any(error["type"] == "json_invalid" for error in errors):
        return bad_request(MESSAGES["json_invalid"])
    depth = max(len(error["loc"]) for error in errors)
    deepest = [error for error in errors if len(error["loc"]) == depth]
    wrong_type = [error for error in deepest if error["loc"][-1] == "type"]
    other_types = {error["loc"][:-1] for error in wrong_type}
    applicable = [error for error in deepest if error["loc"][:-1] not in other_types]
    error = (applicable or wrong_type)[0]
    field = _path(error["loc"], error["type"] == "missing")
    if error["type"] in ("literal_error", "union_tag_invalid") and "content" in error["loc"]:
        field, given = field.removesuffix(".type"), error["input"]
        kind = given.get("type") if isinstance(given, Mapping) else given
        return bad_request(
            f"{field} has the type {str(kind)[:60]!r}; this model accepts text only.", field
        )
    context = dict(error.get("ctx", {}))
    if error["type"] == "literal_error":
        context["expected"] = context["expected"].replace("False", "false")
        given = _format_value(error["input"])
        if reason := VALUE_REASONS.get(re.sub(r"\[\d+\]", "[]", field)):
            message = f"{field} must be {context['expected']}, got {given}: {reason}."
            return bad_request(message, field, "unsupported_value")
    if error["type"] in MESSAGES:
        return bad_request(
            MESSAGES[error["type"]].format(field=field, **context), field, CODES.get(error["type"])
        )
    if error["type"] in REQUIREMENTS:
        requirement = REQUIREMENTS[error["type"]].format_map(context)
        given = context.get("actual_length", _format_value(error["input"]))
        return bad_request(f"{field} {requirement}, got {given}.", field, error["type"])
    reason = str(error["msg"])
    text = reason[:1].lower() + reason[1:]
    return bad_request(f"{field} is not valid: {text.rstrip('.')}.", field, error["type"])


def _format_value(value: Any) -> str:
    """Formats a JSON value; lists and objects, which may be large, by type."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return short_repr(value[:60] if isinstance(value, str) else value)


# Union alternatives that pydantic inserts into error locations: part types and Python types.
PART_TYPES = (
    *("text", "input_text", "output_text", "search_result", "thinking", "redacted_thinking"),
    *("document", "tool_use", "tool_result", "refusal"),
)


def _path(location: Sequence[Any], is_missing: bool) -> str:
    """Returns a field's path, e.g. `messages[0].content`; `body` if empty."""
    path, steps = "", location[1:]
    for position, step in enumerate(steps):
        is_name = position == 0 or (is_missing and position == len(steps) - 1)
        if isinstance(step, int):
            path += f"[{step}]"
        elif is_name or not _is_type(step, steps[position - 1]):
            path += f".{step[:60]}" if path else step[:60]
    return path or "body"


def _is_type(step: str, last: Any) -> bool:
    """Whether a location step is a union alternative rather than a field name."""
    is_python = step in ("str", "int", "bool") or "[" in step or "(" in step or step[:1].isupper()
    return is_python or (step in PART_TYPES and isinstance(last, int))
