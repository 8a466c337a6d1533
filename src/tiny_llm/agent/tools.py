"""Tools: functions that the model calls, with validated arguments."""

import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

from ..engine.structured_output.grammar import close_objects
from ..errors import UserError
from .models import Message

MAX_ERRORS = 3  # maximum number of schema violations reported to the model per call
MAX_ERROR_LENGTH = 200  # characters per violation; jsonschema quotes the value, which may be long


class ToolError(ValueError):
    """A mistake by the model, which receives the message and can retry."""


@dataclass(frozen=True)
class Tool:
    """A function that the model may call.

    Args:
        name, description: shown to the model.
        parameters: JSON schema of the arguments, with "properties" and "required"; additional
            properties are rejected.
        function: takes the arguments as keywords and returns the result as text. `ValueError` and
            `OSError` are reported to the model as its mistakes; other exceptions end the run.

    Raises:
        UserError: the schema is invalid, or jsonschema is not installed.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable[..., str]
    _validator: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            from jsonschema import Draft202012Validator, SchemaError
        except ImportError as error:
            raise UserError(
                "tools require jsonschema; run `pip install 'tiny-llm[serve]'`."
            ) from error
        schema = close_objects({"type": "object", **self.parameters})
        object.__setattr__(self, "parameters", schema)
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise UserError(
                f"the parameters of tool {self.name} are not a valid JSON schema: {error.message}."
            ) from error
        object.__setattr__(self, "_validator", Draft202012Validator(schema))

    @property
    def definition(self) -> Message:
        function = {"name": self.name, "description": self.description}
        return {"type": "function", "function": {**function, "parameters": self.parameters}}

    def violations(self, arguments: Any) -> list[str]:
        """Returns sorted schema violations: "$.path: 3 is not of type 'string'"."""
        errors = self._validator.iter_errors(arguments)
        return sorted(f"{error.json_path}: {error.message[:MAX_ERROR_LENGTH]}" for error in errors)


def reject_constant(name: str) -> NoReturn:
    """For `json.loads(…, parse_constant=reject_constant)`: NaN and ±Infinity are not JSON."""
    raise ValueError(f"{name} is not a JSON number")


def parse_arguments(tool: Tool, text: str) -> dict[str, Any]:
    """Parses and validates a call's arguments, JSON text from the model.

    Empty text means no arguments.

    Raises:
        ToolError: the text is not JSON or nested too deeply, or violates the tool's schema. The
            message contains the tool's name and "not JSON", or the first `MAX_ERRORS` violations,
            joined by "; ".
    """
    # [task 7.1.1 arguments]
    try:
        arguments = json.loads(text or "{}", parse_constant=reject_constant)
        violations = tool.violations(arguments)
    except (ValueError, RecursionError) as error:
        raise ToolError(f"the arguments of {tool.name} are not JSON: {error}") from error
    if violations:
        raise ToolError(f"invalid arguments of {tool.name}: {'; '.join(violations[:MAX_ERRORS])}")
    return dict(arguments)
    # [/task 7.1.1 arguments]


def run_call(call: Message, tools: Mapping[str, Tool]) -> Message:
    """Runs an entry of `tool_calls`; returns the tool message.

    A mistake by the model yields the content "error: …".
    """
    # [task 7.1.2 call]
    name = call["function"]["name"]
    try:
        if name not in tools:
            raise ToolError(f"unknown tool {name}; the available tools are {', '.join(tools)}")
        arguments = parse_arguments(tools[name], call["function"]["arguments"])
        content = tools[name].function(**arguments)
    except (ValueError, OSError) as error:
        content = f"error: {error}"
    return {"role": "tool", "tool_call_id": call["id"], "content": content}
    # [/task 7.1.2 call]


def calculator() -> list[Tool]:
    """Calculator tools, for models too small for arithmetic, e.g. the demo model."""

    def calculate(operation: Callable[[float, float], float], a: float, b: float) -> str:
        try:
            return str(operation(a, b))
        except OverflowError as error:
            raise ToolError(f"the numbers are too large: {error}") from error

    numbers = {"a": {"type": "number"}, "b": {"type": "number"}}
    schema = {"properties": numbers, "required": ["a", "b"]}
    return [
        Tool("add", "Adds two numbers.", schema, partial(calculate, operator.add)),
        Tool("subtract", "Subtracts b from a.", schema, partial(calculate, operator.sub)),
        Tool("multiply", "Multiplies two numbers.", schema, partial(calculate, operator.mul)),
    ]
