"""Program that validates JSON for `validator.py` in a sandboxed process."""

import json
import resource
import sys
from contextlib import suppress
from itertools import islice
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for
from referencing import Registry

MAX_BYTES = 2**30  # address space
MAX_VIOLATIONS = 5


def find_violations(schema: Any, instance: Any) -> list[str]:
    """Returns JSON pointers to the violated keywords in the schema, at most MAX_VIOLATIONS."""
    kind = validator_for(schema, default=Draft202012Validator)
    # The registry is empty, so remote references are errors.
    errors = islice(kind(schema, registry=Registry()).iter_errors(instance), MAX_VIOLATIONS)
    return list(dict.fromkeys(_pointer(best_match([error])) for error in errors))


def _pointer(error: Any) -> str:
    steps = [str(step).replace("~", "~0").replace("/", "~1") for step in error.absolute_schema_path]
    return "".join(f"/{step}" for step in steps)


def main() -> None:
    """Replies to each line of standard input with the violated keywords or an error."""
    with suppress(ValueError, OSError):  # not supported on macOS
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    print("{}", flush=True)
    for line in sys.stdin:
        try:
            given = json.loads(line)
            violated = find_violations(given["schema"], given["instance"])
            reply: dict[str, Any] = {"violated": violated}
        except Exception as error:  # invalid schemas and patterns raise many exception types
            reply = {"error": type(error).__name__}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
