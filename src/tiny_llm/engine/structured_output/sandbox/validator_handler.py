"""Sandboxed validation of JSON outputs, for `../relaxation.py`."""

from collections.abc import Callable
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for
from referencing import Registry

MAX_VIOLATIONS = 5


def find_violations(schema: Any, instance: Any) -> list[str]:
    """Returns JSON pointers to the schema keywords that `instance` violates."""
    kind = validator_for(schema, default=Draft202012Validator)
    # The registry is empty, so remote references are errors.
    errors = islice(kind(schema, registry=Registry()).iter_errors(instance), MAX_VIOLATIONS)
    return list(dict.fromkeys(_pointer(best_match([error])) for error in errors))


def _pointer(error: Any) -> str:
    steps = [str(step).replace("~", "~0").replace("/", "~1") for step in error.absolute_schema_path]
    return "".join(f"/{step}" for step in steps)


def make_handler() -> Callable[..., dict[str, list[str]]]:
    return _handle


def _handle(schema: Any, instance: Any) -> dict[str, list[str]]:
    try:
        return {"violated": find_violations(schema, instance)}
    except Exception as error:  # invalid schemas and patterns raise many exception types
        raise ValueError(type(error).__name__) from error
