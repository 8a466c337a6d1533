"""Validation of outputs against schema keywords that grammars cannot enforce.

Validation runs in a separate process with a time limit, because a regular expression in a schema
can take minutes to match. Violations are reported by keyword, without values.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from ...errors import short_repr
from ..inputs.structured_outputs import StructuredOutputs, ToolCalls, schema_to_json
from .relaxation import UNIMPLEMENTED_KEYWORDS
from .sandbox.process import SandboxedProcess

HANDLER = Path(__file__).parent / "sandbox" / "validator_handler.py"
TIMEOUT_SECONDS = 2.0
MAX_MEMORY_BYTES = 2**30

# Keywords that relaxation may have removed from a schema. `RELAXABLE` finds them, or look-around in
# a pattern, in the schema's JSON text; other schemas need no validation.
RELAXABLE_KEYWORDS = UNIMPLEMENTED_KEYWORDS | {
    *("oneOf", "patternProperties", "minProperties", "maxProperties")
}
RELAXABLE = re.compile(
    '"(' + "|".join(map(re.escape, sorted(RELAXABLE_KEYWORDS))) + r')"\s*:|\(\?<?[=!]'
)


class OutputValidator:
    """Validates complete outputs against their schemas. Thread-safe."""

    def __init__(self) -> None:
        self._process = SandboxedProcess(HANDLER, [], TIMEOUT_SECONDS, 2**16, MAX_MEMORY_BYTES)

    def find_violations(
        self, constraint: StructuredOutputs | ToolCalls, text: str, calls: Sequence[tuple[str, str]]
    ) -> list[str]:
        """Returns a message for each JSON output or call that violates its schema.

        Args:
            text: content of the output, without reasoning and tool calls.
            calls: (name, arguments as JSON text) of each tool call.
        """
        if isinstance(constraint, StructuredOutputs):
            schema = constraint.json
            return [] if schema is None else self._check("the JSON schema", str(schema), text)
        functions = [tool["function"] for tool in constraint.tools]
        schemas = {function["name"]: function.get("parameters") for function in functions}
        violations = []
        for name, arguments in calls:
            if schemas.get(name):
                what = f"the schema of the tool {short_repr(name)}"
                violations += self._check(what, schema_to_json(schemas[name]), arguments)
        return violations

    def _check(self, what: str, schema: str, text: str) -> list[str]:
        if not RELAXABLE.search(schema):
            return []
        try:
            payload = {"schema": json.loads(schema), "instance": json.loads(text)}
            keywords = self._process.request(payload)["violated"]
        except (ValueError, BrokenPipeError, RecursionError) as error:
            return [f"the output could not be checked against {what}: {short_repr(str(error))}."]
        if not keywords:
            return []
        return [f"the output violates {what} at {', '.join(map(short_repr, keywords))}."]
