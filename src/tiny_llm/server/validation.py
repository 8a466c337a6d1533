"""What pydantic found wrong with a body, in one sentence."""

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import ApiError, refused

# pydantic's name of an error, and our words for it; `{…}` are the error's own details.
WORDS = {
    "extra_forbidden": "{field} is not a field that this server knows; leave it out.",
    "missing": "{field} is missing; it is required.",
    "json_invalid": "The body is not JSON.",
}


def refusal(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """The error for a body that is refused.

    Args:
        errors: as pydantic lists them. The one that is deepest in the body is told: where a field
            may have several types, the others only say that it is not of theirs.
    """
    if any(error["type"] == "json_invalid" for error in errors):
        return refused(WORDS["json_invalid"])
    error = max(errors, key=lambda one: len(one["loc"]))
    field = _path(error["loc"])
    if error["type"] in WORDS:
        return refused(WORDS[error["type"]].format(field=field), field)
    reason = str(error["msg"])
    text = reason[:1].lower() + reason[1:]
    return refused(f"{field} is not valid: {text.rstrip('.')}.", field)


def _path(location: Sequence[Any]) -> str:
    """A place in the body, such as `messages[0].content`; the body itself is `body`."""
    path = ""
    for step in location[1:]:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step.isidentifier() and step not in ("str", "int", "bool"):
            path += f".{step}" if path else step
        elif not ("[" in step or "(" in step or step in ("str", "int", "bool")):
            path += f".{step[:60]}" if path else step[:60]
    return path or "body"
