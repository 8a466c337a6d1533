"""Oversized and malformed bodies for all fields of the OpenAPI document."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

NUM_BYTES = 4_000_000  # just below the default body limit
MAX_TOKENS = ("max_tokens", "max_output_tokens")
Schema = Mapping[str, Any]
Fault = Callable[[str, int], str]
Wrap = Callable[[str], str]  # maps a field's JSON to the body's JSON


@dataclass(frozen=True)
class Shape:
    """A request body, made on demand; `field` is empty for the whole body."""

    path: str
    field: str
    fault: str
    make: Callable[[], str]

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
            values = example, schema.get("maxItems", 0)
            for fault, make in FAULTS[schema["type"]].items():
                yield Shape(path, field, fault, partial(_body, wrap, make, values))


def _body(wrap: Wrap, make: Fault, values: tuple[str, int]) -> str:
    return wrap(make(*values))


class _Walker:
    """Walks a JSON schema: resolves references and enumerates fields."""

    def __init__(self, definitions: Schema):
        self._definitions = definitions

    def alternatives(self, schema: Schema) -> list[Schema]:
        """Alternatives of a schema: resolved references and unions, without null."""
        if "$ref" in schema:
            return self.alternatives(self._definitions[schema["$ref"].rpartition("/")[2]])
        listed = schema.get("anyOf") or schema.get("oneOf")
        if listed:
            return [option for part in listed for option in self.alternatives(part)]
        return [] if schema.get("type") == "null" else [schema]

    def example(self, schema: Schema) -> Any:
        first = next(iter(self.alternatives(schema)), {"const": None})
        if "const" in first or "enum" in first:
            return first.get("const", first.get("enum", [None])[0])
        match first.get("type"):
            case "object":
                properties = first.get("properties", {})
                required = {name: properties[name] for name in first.get("required", ())}
                short = {name: 1 for name in MAX_TOKENS if name in properties}
                return {name: self.example(s) for name, s in required.items()} | short
            case "array":
                return [self.example(first["items"])] if first.get("minItems") else []
            case "integer" | "number":
                return first.get("minimum", 1)
            case "boolean":
                return False
        return "a"

    def fields(self, schema: Schema, name: str, wrap: Wrap) -> Iterator[tuple[str, Schema, Wrap]]:
        """Yields (name, schema, `Wrap`) of a schema's arrays, objects and strings."""
        for option in self.alternatives(schema):
            kind = option.get("type")
            if kind in FAULTS and not {"const", "enum"} & set(option):
                yield name, option, wrap
            if kind == "array":
                yield from self.fields(option["items"], f"{name}[]", lambda text: wrap(f"[{text}]"))
            for key, value in option.get("properties", {}).items():
                others = {k: v for k, v in self.example(option).items() if k != key}
                head = json.dumps(others)[:-1] + (", " if others else "") + json.dumps(key) + ": "
                inside = partial(lambda head, text: wrap(f"{head}{text}}}"), head)
                yield from self.fields(value, f"{name}.{key}".lstrip("."), inside)


def _repeat(text: str, num_bytes: int = NUM_BYTES) -> str:
    return f"[{', '.join([text] * (num_bytes // (len(text) + 2)))}]"


# Faults by field type. Each fault maps an example value (for arrays, of an element) and the maximum
# number of elements to the field's JSON.
FAULTS: dict[str, dict[str, Fault]] = {
    "array": {
        "full body": lambda example, _: _repeat(example),
        "one too many": lambda example, max_items: f"[{', '.join([example] * (max_items + 1))}]",
        "last element wrong": lambda example, max_items: (
            f"[{', '.join([example] * min(max_items - 1, 8000))}, []]"
        ),
        "numbers": lambda example, _: _repeat("1", 250_000),
        "empty objects": lambda example, _: _repeat("{}", 60_000),
        "lists with a wrong element": lambda example, _: _repeat('[1, "a", {}]', 80_000),
        "1,000 levels": lambda example, _: "[" * 1000 + "]" * 1000,
        "80 levels, often": lambda example, _: _repeat("[" * 80 + "]" * 80, 32_000),
    },
    "object": {
        "full body": lambda example, _: json.dumps(dict.fromkeys(range(200_000), 1)),
        "numbers": lambda example, _: json.dumps(dict.fromkeys(range(4000), 1000)),
        "lists": lambda example, _: json.dumps({key: ["a", {}] for key in range(4000)}),
        "long key": lambda example, _: json.dumps({"k" * NUM_BYTES: 1}),
        "list of objects": lambda example, _: _repeat("{}", 60_000),
        "1,000 levels": lambda example, _: '{"a": ' * 1000 + "1" + "}" * 1000,
        "80 levels, often": lambda example, _: (
            f'{{"type": {_repeat("[" * 80 + "]" * 80, 32_000)}}}'
        ),
    },
    "string": {
        "words": lambda example, _: json.dumps("word " * (NUM_BYTES // 5)),
        "spaces": lambda example, _: json.dumps(" " * NUM_BYTES),
        "escapes": lambda example, _: json.dumps('"\\\0' * (NUM_BYTES // 11)),
        "60,000 letters": lambda example, _: json.dumps("a" * 60_000),
        "nested JSON": lambda example, _: json.dumps("[" * 1000 + "]" * 1000),
        "list": lambda example, _: _repeat('"a"', 250_000),
    },
}
