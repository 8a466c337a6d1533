"""Random JSON schemas: `jsonschema` validates all complete outputs."""

import json
import random
from collections import Counter
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.engine.support import chat
from tests.support import object_schema
from tiny_llm import SamplingParams, StructuredOutputs

pytest.importorskip("llguidance")

WORDS = ["name", "age", "of", "colour", "a b", "ü", "x/y", '"', "2", "tags"]


VALUES = [*WORDS, 1, 2.5, None, False, ["a"]]


def random_schema(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """Draws a schema: of an object, a list or alternatives at first, a leaf at depth 3."""

    def nested() -> dict[str, Any]:
        return random_schema(rng, depth + 1)

    kinds = ["leaf"] * 5 * (depth > 0) + ["object", "object", "list", "choice"] * (depth < 3)
    match rng.choice(kinds):
        case "object":
            names = rng.sample(WORDS, rng.randint(1, 4))
            schema = object_schema(**{name: nested() for name in names})
            schema["required"] = rng.sample(names, rng.randint(0, len(names)))
            if rng.random() < 0.2:
                schema["$defs"] = {"shared": nested()}
                schema["properties"][names[0]] = True if depth else {"$ref": "#/$defs/shared"}
            return {**schema, "additionalProperties": False}
        case "list" if rng.random() < 0.3:
            items = [nested() for _ in range(rng.randint(1, 3))]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        case "list":
            bounds = {"minItems": (low := rng.randint(0, 2)), "maxItems": low + rng.randint(0, 2)}
            return {"type": "array", "items": nested(), **bounds}
        case "choice":
            return {"anyOf": [nested() for _ in range(rng.randint(2, 3))]}
    low = rng.randint(-99, 99)
    strings = (
        {"maxLength": rng.randint(0, 9)},
        {"minLength": 1, "maxLength": rng.randint(1, 6)},
        {"pattern": rng.choice(["^[a-z]{2,5}$", "^\\d{3}-\\d{2}$", "^(yes|no|x+)$"])},
        {"format": rng.choice(["date", "uuid", "ipv4"])},
    )
    integers = (
        {"minimum": low, "maximum": low + rng.randint(0, 999)},
        {"exclusiveMinimum": low, "exclusiveMaximum": low + rng.randint(2, 99)},
        {"multipleOf": rng.choice([2, 5, 10]), "minimum": 0, "maximum": 200},
    )
    leaves = (
        {"type": "string", **rng.choice(strings)},
        {"type": "integer", **rng.choice(integers)},
        {"enum": rng.sample(VALUES, rng.randint(1, 5))},
        {"const": rng.choice([None, True, 0, -3, 1.5, "a\nb", [1, "x"], {"k": []}])},
        {"type": rng.choice(["boolean", "null", "integer"])},
    )
    return rng.choice(leaves)


@pytest.mark.slow
def test_many_schemas(llm, exhaustive):
    count = 1000 if exhaustive else 150
    schemas = [random_schema(random.Random(seed)) for seed in range(count)]
    params = [
        SamplingParams(
            seed=seed,
            temperature=(0, 0.7, 1.5)[seed % 3],
            max_tokens=300,
            structured_outputs=StructuredOutputs(json=schema),
        )
        for seed, schema in enumerate(schemas)
    ]
    prompts = [chat(f"JSON for {json.dumps(schema)[:200]}") for schema in schemas]
    ends = Counter()
    for schema, output in zip(schemas, llm.generate(prompts, params), strict=True):
        Draft202012Validator.check_schema(schema)
        ends[output.finish_reason] += 1
        if output.finish_reason == "stop":
            Draft202012Validator(schema).validate(json.loads(output.text))
        elif output.finish_reason == "error":
            assert output.error.startswith("the grammar is rejected: "), (schema, output.error)
    print(ends)
    assert ends.keys() <= {"stop", "length", "error"}
    assert ends["stop"] >= 0.8 * count
