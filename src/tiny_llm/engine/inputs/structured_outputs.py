"""What form an answer must have: a caller's wish, checked as far as that needs no grammar.

`compiler.py` compiles it, `bitmask.py` keeps tokens to it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ...errors import UserError, short_repr
from .chat_messages import normalize_tools

ToolChoice = Literal["auto", "required"]


@dataclass(frozen=True)
class StructuredOutputs:
    """The form of an answer, after what the model thinks. Give one of them; names are vLLM's.

    Args:
        json: a JSON schema, as an object or as its text.
        regex: a regular expression that the whole answer matches.
        choice: texts, one of which is the answer.
        grammar: in Lark's notation, or llama.cpp's GBNF.
        json_object: True for any JSON object.

    Raises:
        UserError: none of them is given, or several, or one is of a wrong kind.
    """

    json: Mapping[str, Any] | bool | str | None = field(default=None, hash=False)
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def __post_init__(self) -> None:
        names = ("json", "regex", "choice", "grammar", "json_object")
        given = [name for name in names if getattr(self, name) not in (None, ())]
        if self.json_object is False or len(given) != 1:
            raise UserError(
                f"structured_outputs has {' and '.join(given) or 'nothing'}; give exactly one of "
                "json, regex, choice, grammar and json_object=True."
            )
        for name in ("regex", "grammar"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise UserError(f"structured_outputs has the {name} {short_repr(value)}, no text.")
        if self.json_object not in (None, True):
            raise UserError(f"structured_outputs has json_object={short_repr(self.json_object)}.")
        if self.choice is not None:
            object.__setattr__(self, "choice", _normalize_choice(self.choice))
        if self.json is not None:
            object.__setattr__(self, "json", _normalize_schema(self.json))


@dataclass(frozen=True)
class ToolCalls:
    """An answer of text, tool calls, or both, as Qwen3 writes them (Hermes' form).

    A call looks like this:

        <tool_call>
        {"name": "add", "arguments": {"a": 17, "b": 25}}
        </tool_call>

    Args:
        tools: as OpenAI's protocol has them; a call's arguments have the schema of its tool.
        choice: "auto" for text, calls, or text and then calls; "required" for calls alone. Where
            calls are free, keywords of a schema that cannot be kept are left out.
        name: of the tool that must be called, for "required"; None for any.
        parallel: whether there may be several calls.

    Raises:
        UserError: there is no tool, none of that name, or one is of a wrong kind.
    """

    tools: Sequence[Mapping[str, Any]] = field(hash=False)
    choice: ToolChoice = "auto"
    name: str | None = None
    parallel: bool = True

    def __post_init__(self) -> None:
        tools = normalize_tools(self.tools)
        if not tools:
            raise UserError("tool calls were asked for, and tools is empty.")
        if self.choice not in ("auto", "required"):
            raise UserError(f"the tool choice is {self.choice!r}; it must be 'auto' or 'required'.")
        known = [tool["function"]["name"] for tool in tools]
        if self.name is not None and (self.choice != "required" or self.name not in known):
            raise UserError(
                f"the tool '{self.name}' cannot be required; the tools are {', '.join(known)}."
            )
        object.__setattr__(self, "tools", tuple(tools))


def _normalize_choice(choice: Any) -> tuple[str, ...]:
    is_several = isinstance(choice, Sequence) and not isinstance(choice, str | bytes)
    if not is_several or not all(isinstance(one, str) and one for one in choice):
        raise UserError(
            f"structured_outputs has the choice {short_repr(choice)}; it must be texts, none empty."
        )
    return tuple(choice)


def _normalize_schema(schema: Any) -> str:
    """A JSON schema as text: an object, true or false."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise UserError(f"the JSON schema {short_repr(schema)} is not JSON.") from error
    if not isinstance(schema, Mapping | bool):
        raise UserError(f"the JSON schema is {short_repr(schema)}; it must be an object.")
    return schema_to_json(schema)


def schema_to_json(value: Any) -> str:
    """A caller's schema as JSON text.

    Raises:
        UserError: it has something that JSON does not have, or too many levels.
    """
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        reason = str(error).rstrip(".")
        raise UserError(f"the schema {short_repr(value)} cannot be JSON: {reason}.") from error
