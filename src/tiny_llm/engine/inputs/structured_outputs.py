"""StructuredOutputs and ToolCalls: constraints on a request's output.

Validated without a grammar library; compiled in `compiler.py`, enforced in `bitmask.py`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ...errors import UserError, short_repr
from .chat_template import normalize_tools
from .limits import JsonLimits

ToolChoice = Literal["auto", "required"]

# llguidance's limit on nesting.
NESTED_TOO_DEEPLY = "the JSON schema must have at most 124 levels of nesting"


@dataclass(frozen=True)
class StructuredOutputs:
    """A constraint on the output after reasoning; field names follow vLLM.

    Args:
        json: JSON schema, as an object or as a string.
        regex: regular expression that must match the whole output.
        choice: allowed outputs.
        grammar: Lark grammar, or llama.cpp's GBNF.
        json_object: True for any JSON object.
        strict: whether to reject, not relax, a JSON schema with keywords that no grammar enforces.
    """

    json: Mapping[str, Any] | bool | str | None = field(default=None, hash=False)
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        names = ("json", "regex", "choice", "grammar", "json_object")
        given = [name for name in names if getattr(self, name) not in (None, ())]
        if self.json_object is False or len(given) != 1:
            raise UserError(
                "structured_outputs must have exactly one of json, regex, choice, grammar and "
                f"json_object=True, got {' and '.join(given) or 'none'}."
            )
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise UserError(
                    f"structured_outputs.{name} must be a string, got {short_repr(value)}."
                )
        if self.json_object not in (None, True):
            raise UserError(
                "structured_outputs.json_object must be True or None, got "
                f"{short_repr(self.json_object)}."
            )
        if self.choice is not None:
            object.__setattr__(self, "choice", _normalize_choice(self.choice))
        if self.json is not None:
            object.__setattr__(self, "json", _normalize_schema(self.json))


@dataclass(frozen=True)
class ToolCalls:
    """Tool calls in the model's format, optionally with text.

    `engine/tool_calls/registry.py` lists the formats. For example, Qwen3's is:

        <tool_call>
        {"name": "add", "arguments": {"a": 17, "b": 25}}
        </tool_call>

    Args:
        tools: tools in OpenAI's format; their schemas constrain the arguments. Keywords that a
            grammar cannot enforce are ignored, unless `choice` is "required" and the function has
            `"strict": true`.
        choice: "auto" for text, calls or both; "required" for calls only.
        name: the tool to call, with "required"; None for any tool.
        parallel: whether several calls are allowed, if the format supports them.
        response_constraint: with "auto", constraint on an output without calls; calls then have
            no text around them. None leaves text unconstrained.
    """

    tools: Sequence[Mapping[str, Any]] = field(hash=False)
    choice: ToolChoice = "auto"
    name: str | None = None
    parallel: bool = True
    response_constraint: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        tools = normalize_tools(self.tools)
        if not tools:
            raise UserError("tools must not be empty.")
        if self.choice not in ("auto", "required"):
            raise UserError(f"the tool choice must be 'auto' or 'required', got {self.choice!r}.")
        known = [tool["function"]["name"] for tool in tools]
        if self.name is not None and self.name not in known:
            raise UserError(
                f"the required tool must be one of {', '.join(known)}, got '{self.name}'."
            )
        if self.name is not None and self.choice != "required":
            raise UserError("naming a tool requires the tool choice 'required', got 'auto'.")
        if self.response_constraint is not None and self.choice != "auto":
            raise UserError("response_constraint requires the tool choice 'auto', got 'required'.")
        object.__setattr__(self, "tools", tuple(tools))


def _normalize_choice(choice: Any) -> tuple[str, ...]:
    is_list = isinstance(choice, Sequence) and not isinstance(choice, str | bytes)
    if not is_list or not all(isinstance(text, str) and text for text in choice):
        raise UserError(
            "structured_outputs.choice must be a list of non-empty strings, got "
            f"{short_repr(choice)}."
        )
    return tuple(choice)


def _normalize_schema(schema: Any) -> str:
    if isinstance(schema, str):
        JsonLimits("the JSON schema").check(schema)
        try:
            schema = json.loads(schema)
        except RecursionError as error:
            raise UserError(f"{NESTED_TOO_DEEPLY}.") from error
        except ValueError as error:
            raise UserError(f"the JSON schema {short_repr(schema)} is not JSON.") from error
    if not isinstance(schema, Mapping | bool):
        raise UserError(f"the JSON schema must be an object, got {short_repr(schema)}.")
    return schema_to_json(schema)


def schema_to_json(value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except RecursionError as error:
        raise UserError(f"{NESTED_TOO_DEEPLY}.") from error
    except (TypeError, ValueError) as error:
        reason = str(error).rstrip(".")
        raise UserError(
            f"the schema {short_repr(value)} is not JSON-serializable: {reason}."
        ) from error
