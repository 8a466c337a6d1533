"""Oversized and malformed bodies for each list, object and text in the OpenAPI document."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

NUM_BYTES = 4_000_000  # just below the default limit of a body
MAX_TOKENS = ("max_tokens", "max_output_tokens")
Schema = Mapping[str, Any]
Fault = Callable[[str, int], str]
Wrap = Callable[[str], str]  # JSON of a field's value to JSON of the body


@dataclass(frozen=True)
class Shape:
    """A request body, generated when it is read.

    Attributes:
        path: the endpoint.
        field: the field's path; empty for the body.
        fault: kind of fault.
        make: returns the JSON text.
    """

    path: str
    field: str
    fault: str
    make: Callable[[], str]

    @property
    def body(self) -> bytes:
        """The body."""
        return self.make().encode()

    def __str__(self) -> str:
        return f"{self.path} {self.field or 'body'}: {self.fault}"


def all_shapes(document: Schema) -> Iterator[Shape]:
    """Yields every kind of fault for every field of every endpoint."""
    for path, operations in document["paths"].items():
        if "requestBody" not in operations.get("post", {}):
            continue
        content = operations["post"]["requestBody"]["content"]["application/json"]
        walker = _Walker(document["components"]["schemas"])
        for field, schema, wrap in walker.fields(content["schema"], "", lambda text: text):
            example = json.dumps(walker.example(schema.get("items", schema)))
            max_items = schema.get("maxItems", 0)
            for fault, make in FAULTS[schema["type"]].items():
                yield Shape(path, field, fault, _Make(wrap, make, example, max_items))


@dataclass(frozen=True)
class _Make:
    """Generates a body; arguments as in `FAULTS`."""

    wrap: Wrap
    fault: Fault
    example: str
    max_items: int

    def __call__(self) -> str:
        return self.wrap(self.fault(self.example, self.max_items))


class _Walker:
    """Resolves references, and finds fields.

    Args:
        definitions: named schemas.
    """

    def __init__(self, definitions: Schema):
        self._definitions = definitions

    def alternatives(self, schema: Schema) -> list[Schema]:
        """A schema without references and unions; null is left out."""
        if "$ref" in schema:
            return self.alternatives(self._definitions[schema["$ref"].rpartition("/")[2]])
        listed = schema.get("anyOf") or schema.get("oneOf")
        if listed:
            return [one for part in listed for one in self.alternatives(part)]
        return [] if schema.get("type") == "null" else [schema]

    def example(self, schema: Schema) -> Any:
        """A small value that matches a schema."""
        first = next(iter(self.alternatives(schema)), {"const": None})
        if "const" in first or "enum" in first:
            return first.get("const", first.get("enum", [None])[0])
        match first.get("type"):
            case "object":
                properties = first.get("properties", {})
                short = [name for name in MAX_TOKENS if name in properties]
                required = {name: properties[name] for name in first.get("required", ())}
                return {name: self.example(one) for name, one in required.items()} | dict.fromkeys(
                    short, 1
                )
            case "array":
                return [self.example(first["items"])] if first.get("minItems") else []
            case "integer" | "number":
                return first.get("minimum", 1)
            case "boolean":
                return False
        return "a"

    def fields(self, schema: Schema, name: str, wrap: Wrap) -> Iterator[tuple[str, Schema, Wrap]]:
        """Yields name, schema and `Wrap` of the lists, objects and texts of a schema."""
        for one in self.alternatives(schema):
            kind = one.get("type")
            if kind in FAULTS and not {"const", "enum"} & set(one):
                yield name, one, wrap
            if kind == "array":
                yield from self.fields(one["items"], f"{name}[]", _element(wrap))
            for key, below in one.get("properties", {}).items():
                others = {k: v for k, v in self.example(one).items() if k != key}
                inside = _member(wrap, others, key)
                yield from self.fields(below, f"{name}.{key}".lstrip("."), inside)


def _member(wrap: Wrap, others: Schema, key: str) -> Wrap:
    head = json.dumps(others)[:-1] + (", " if others else "") + json.dumps(key) + ": "
    return lambda text: wrap(f"{head}{text}}}")


def _element(wrap: Wrap) -> Wrap:
    return lambda text: wrap(f"[{text}]")


def _repeat(text: str, num_bytes: int = NUM_BYTES) -> str:
    return f"[{', '.join([text] * (num_bytes // (len(text) + 2)))}]"


# Faults by the field's type: JSON of the field by an example (of an element, for a list) and the
# maximum number of elements.
FAULTS: dict[str, dict[str, Fault]] = {
    "array": {
        "full body": lambda one, most: _repeat(one),
        "one too many": lambda one, most: f"[{', '.join([one] * (most + 1))}]",
        "last element wrong": lambda one, most: f"[{', '.join([one] * min(most - 1, 8000))}, []]",
        "numbers": lambda one, most: _repeat("1", 250_000),
        "empty objects": lambda one, most: _repeat("{}", 60_000),
        "lists with a wrong element": lambda one, most: _repeat('[1, "a", {}]', 80_000),
        "1,000 levels": lambda one, most: "[" * 1000 + "]" * 1000,
        "80 levels, often": lambda one, most: _repeat("[" * 80 + "]" * 80, 32_000),
    },
    "object": {
        "full body": lambda one, most: json.dumps(dict.fromkeys(range(200_000), 1)),
        "numbers": lambda one, most: json.dumps(dict.fromkeys(range(4000), 1000)),
        "lists": lambda one, most: json.dumps({key: ["a", {}] for key in range(4000)}),
        "long key": lambda one, most: json.dumps({"k" * NUM_BYTES: 1}),
        "list of objects": lambda one, most: _repeat("{}", 60_000),
        "1,000 levels": lambda one, most: '{"a": ' * 1000 + "1" + "}" * 1000,
        "80 levels, often": lambda one, most: f'{{"type": {_repeat("[" * 80 + "]" * 80, 32_000)}}}',
    },
    "string": {
        "words": lambda one, most: json.dumps("word " * (NUM_BYTES // 5)),
        "spaces": lambda one, most: json.dumps(" " * NUM_BYTES),
        "escapes": lambda one, most: json.dumps('"\\\0' * (NUM_BYTES // 11)),
        "60,000 letters": lambda one, most: json.dumps("a" * 60_000),
        "nested JSON": lambda one, most: json.dumps("[" * 1000 + "]" * 1000),
        "list": lambda one, most: _repeat('"a"', 250_000),
    },
}
