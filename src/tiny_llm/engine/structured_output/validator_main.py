"""JSON validation program for `validator.py`, within time and memory limits."""

import json
import resource
import sys
from contextlib import suppress
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for
from referencing import Registry

MAX_BYTES = 2**30  # address space


def find_violation(schema: Any, instance: Any) -> str | None:
    """Returns the JSON pointer of the violated keyword; None if the value is valid."""
    kind = validator_for(schema, default=Draft202012Validator)
    # The registry is empty, so remote references are errors.
    error = best_match(kind(schema, registry=Registry()).iter_errors(instance))
    if error is None:
        return None
    steps = [str(step).replace("~", "~0").replace("/", "~1") for step in error.absolute_schema_path]
    return "".join(f"/{step}" for step in steps)


def main() -> None:
    """Replies to each line with the violated keyword or an error."""
    with suppress(ValueError, OSError):  # not supported on macOS
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    print("{}", flush=True)
    for line in sys.stdin:
        try:
            given = json.loads(line)
            reply = {"violated": find_violation(given["schema"], given["instance"])}
        except Exception as error:  # invalid schemas and patterns raise many exception types
            reply = {"error": type(error).__name__}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
