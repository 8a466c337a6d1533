"""Relaxation of JSON schemas that a grammar cannot fully enforce; validation of outputs.

Unenforceable keywords, such as `uniqueItems`, are removed, so the grammar allows a superset of
the schema's values. Schemas still invalid without these keywords are rejected, with the location
of the error. Strict schemas are rejected rather than relaxed.
"""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import UserError, short_repr
from ..inputs.sampling_params import StructuredOutputs, ToolCalls, schema_to_json
from .grammar import grammar_error
from .sandboxed_process import HANDLERS, SandboxedProcess

# Returns the grammar library's error for a schema, or "" if the schema is valid.
FindError = Callable[[Any], str]
SchemaVisitor = Callable[[str, Any], Any]

VALIDATION_SECONDS = 2.0  # time limit per validation
MAX_MEMORY_BYTES = 2**30  # of the validating process
MAX_SECONDS = 5.0  # time limit for all schema checks of one constraint
MAX_LISTED = 5  # removed keywords listed in a warning or error

# Keywords that llguidance does not implement.
UNIMPLEMENTED_KEYWORDS = frozenset(
    {
        *("uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"),
        *("propertyNames", "dependentRequired", "dependentSchemas", "dependencies"),
        *("unevaluatedProperties", "not", "if", "then", "else", "$dynamicRef", "$recursiveRef"),
    }
)
# Keywords that have no effect without another removed keyword, so their removal is not reported.
DEPENDENT_KEYWORDS = frozenset({"minContains", "maxContains", "then", "else"})
# Removed keywords that may require properties missing from `properties`.
REQUIRING_KEYWORDS = frozenset(
    {"dependentSchemas", "dependencies", "if", "$dynamicRef", "$recursiveRef", "propertyNames"}
)
# Keywords that relaxation may have removed from a schema. `RELAXABLE` finds them, or look-around in
# a pattern, in the schema's JSON text; other schemas need no validation.
RELAXABLE_KEYWORDS = UNIMPLEMENTED_KEYWORDS | {
    *("oneOf", "patternProperties", "minProperties", "maxProperties")
}
RELAXABLE = re.compile(
    '"(' + "|".join(map(re.escape, sorted(RELAXABLE_KEYWORDS))) + r')"\s*:|\(\?<?[=!]'
)
# Keywords whose value is an object of schemas, a list of schemas, or a schema.
SCHEMA_MAPS = ("properties", "patternProperties", "$defs", "definitions")
SCHEMA_LISTS = ("prefixItems", "items", "allOf", "anyOf", "oneOf")
SINGLE_SCHEMAS = ("items", "additionalItems", "additionalProperties")


def relax(
    constraint: StructuredOutputs | ToolCalls, find_error: FindError
) -> tuple[StructuredOutputs | ToolCalls, list[str]]:
    """Relaxes the schemas of a constraint that llguidance has rejected.

    Returns:
        (the relaxed constraint, a warning for each schema that is not fully enforced).

    Raises:
        UserError: a strict schema has unenforceable keywords, or a schema is invalid.
    """
    find_error = _with_deadline(find_error)
    if isinstance(constraint, StructuredOutputs):
        if constraint.json is None or not find_error(given := json.loads(str(constraint.json))):
            return constraint, []
        schema, warning = _relax_schema("the JSON schema", given, constraint.strict, find_error)
        return replace(constraint, json=schema), list(filter(None, [warning]))
    tools, warnings = [], []
    for tool, is_strict in zip(constraint.tools, strict_schemas(constraint), strict=False):
        function = tool["function"]
        schema, is_called = function.get("parameters"), constraint.name in (None, function["name"])
        if is_called and schema and find_error(schema):
            what = f"the schema of the tool {short_repr(function['name'])}"
            schema, warning = _relax_schema(what, schema, is_strict, find_error)
            warnings.append(warning)
            tool = {**tool, "function": {**function, "parameters": schema}}
        tools.append(tool)
    answer = constraint.response_constraint
    if answer is not None:
        answer, answer_warnings = relax(answer, find_error)  # type: ignore[assignment]
        warnings += answer_warnings
    relaxed = replace(constraint, tools=tools, response_constraint=answer)
    return relaxed, list(filter(None, warnings))


def strict_schemas(constraint: StructuredOutputs | ToolCalls) -> tuple[bool, ...]:
    """Returns whether each schema is strict: the tools', then the response's."""
    if isinstance(constraint, StructuredOutputs):
        return (constraint.strict,)
    is_required = constraint.choice == "required"
    tools = [is_required and tool["function"].get("strict") is True for tool in constraint.tools]
    answer = constraint.response_constraint
    return *tools, *([] if answer is None else [answer.strict])


def _with_deadline(find_error: FindError) -> FindError:
    """Makes `find_error` raise after `MAX_SECONDS` of checks in total."""
    deadline = time.monotonic() + MAX_SECONDS

    def find_error_in_time(schema: Any) -> str:
        if time.monotonic() > deadline:
            raise UserError(
                f"the schema is too complex: checking it takes more than {MAX_SECONDS:g} s."
            )
        return find_error(schema)

    return find_error_in_time


def _relax_schema(
    what: str, schema: Any, is_strict: bool, find_error: FindError
) -> tuple[Any, str]:
    relaxer = _Relaxer(find_error)
    try:
        relaxed = relaxer.relax(schema)
    except RecursionError as error:
        raise UserError(f"{what} is rejected: it is nested too deeply.") from error
    removed = ", ".join(map(short_repr, relaxer.removed[:MAX_LISTED]))
    if len(relaxer.removed) > MAX_LISTED:
        removed += f" and {len(relaxer.removed) - MAX_LISTED} more"
    if find_error(relaxed):
        pointer, reason = _locate(relaxed, find_error)
        where = f" at {short_repr(pointer)}" if pointer else ""
        raise UserError(f"{what} is rejected{where}: {grammar_error(reason)}.")
    if is_strict and removed:
        raise UserError(
            f"{what} is strict, but these keywords cannot be enforced: {removed}; remove them, or "
            "set strict to false."
        )
    if not removed:  # only keywords without effect were removed
        return relaxed, ""
    return relaxed, f"{what} is only partially enforced: {removed} cannot be enforced."


class _Relaxer:
    def __init__(self, find_error: FindError):
        self._find_error = find_error
        # The definitions that `$ref` may refer to; added to each schema that is checked.
        self._definitions: Mapping[str, Any] = {}
        self.removed: list[str] = []  # JSON pointers of the removed keywords

    def relax(self, root: Any) -> Any:
        if not isinstance(root, Mapping):
            return root
        self._definitions = _definitions(root)
        self._definitions = _map_schemas(self._definitions, "", self._relax)
        others = {key: value for key, value in root.items() if key not in self._definitions}
        return {**self._relax("", others), **self._definitions}

    def _relax(self, pointer: str, schema: Any) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        relaxed = _map_schemas(schema, pointer, self._relax)
        for keyword in [keyword for keyword in relaxed if self._is_unenforceable(keyword, relaxed)]:
            value = relaxed.pop(keyword)
            if keyword in DEPENDENT_KEYWORDS or (keyword == "uniqueItems" and value is False):
                continue
            self.removed.append(f"{pointer}/{keyword}")
            if keyword == "oneOf" and "anyOf" in relaxed:
                relaxed["allOf"] = [*relaxed.get("allOf", ()), {"anyOf": value}]
            elif keyword == "oneOf":
                relaxed["anyOf"] = value
            elif keyword == "patternProperties":
                relaxed["additionalProperties"] = True
            elif keyword in REQUIRING_KEYWORDS:
                relaxed.setdefault("additionalProperties", True)
        return relaxed

    def _is_unenforceable(self, keyword: str, schema: Mapping[str, Any]) -> bool:
        """Whether llguidance rejects a keyword, regardless of its subschemas."""
        value = schema[keyword]
        part, faults = {"type": schema.get("type", "string"), keyword: value}, []
        match keyword:
            case "format":
                faults = ["Unknown format"]
            case "pattern":
                faults = ["regex parse error", "lookarounds"]
            case "patternProperties" if isinstance(value, Mapping):
                part, faults = {"type": "object", keyword: dict.fromkeys(value, True)}, ["regex"]
            case "minProperties" | "maxProperties":
                names = ("properties", "required", keyword)
                part = {name: schema[name] for name in names if name in schema}
                part, faults = {**part, "type": "object"}, ["min/maxProperties"]
            case "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf":
                part = {"type": schema.get("type", "number"), keyword: value}
                faults = ["Failed to generate regex", "out of range", "too many digits"]
            case "oneOf":
                part, faults = {keyword: value}, ["oneOf constraints"]
        if not faults:
            return keyword in UNIMPLEMENTED_KEYWORDS
        error = self._find_error({**part, **self._definitions})
        return any(fault in error for fault in faults)


def _locate(schema: Any, find_error: FindError) -> tuple[str, str]:
    """Returns the innermost invalid schema's JSON pointer and error."""
    pointer, definitions = "", _definitions(schema)
    while True:
        for path, part in _subschemas(schema, pointer):
            if isinstance(part, Mapping) and find_error({**part, **definitions}):
                pointer, schema = path, part
                break
        else:
            is_object = isinstance(schema, Mapping)
            return pointer, find_error({**schema, **definitions} if is_object else schema)


def _subschemas(schema: Any, pointer: str) -> list[tuple[str, Any]]:
    parts: list[tuple[str, Any]] = []
    if isinstance(schema, Mapping):
        definitions = _definitions(schema)
        others = {key: value for key, value in schema.items() if key not in definitions}
        _map_schemas(others, pointer, lambda path, part: parts.append((path, part)))
    return parts


def _definitions(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        return {}
    return {key: schema[key] for key in ("$defs", "definitions") if key in schema}


def _map_schemas(schema: Mapping[str, Any], pointer: str, visit: SchemaVisitor) -> dict[str, Any]:
    """Replaces each direct subschema with `visit(JSON pointer, subschema)`."""
    result = dict(schema)
    for key, value in schema.items():
        if key in SCHEMA_MAPS and isinstance(value, Mapping):
            result[key] = {
                name: visit(f"{pointer}/{key}/{_escape(name)}", part)
                for name, part in value.items()
            }
        elif key in SCHEMA_LISTS and isinstance(value, list):
            result[key] = [visit(f"{pointer}/{key}/{i}", part) for i, part in enumerate(value)]
        elif key in SINGLE_SCHEMAS:
            result[key] = visit(f"{pointer}/{key}", value)
    return result


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


class OutputValidator:
    """Validates complete outputs against keywords that grammars cannot enforce. Thread-safe.

    Validation runs in a separate process with a time limit, because a regular expression in a
    schema can take minutes to match. Violations are reported by keyword, without values.
    """

    def __init__(self) -> None:
        self._process = SandboxedProcess(
            HANDLERS, ["validate"], VALIDATION_SECONDS, 2**16, MAX_MEMORY_BYTES
        )

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
