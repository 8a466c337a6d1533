"""Random JSON schemas: `jsonschema` validates all complete outputs."""

import json
import random

import pytest
from jsonschema import Draft202012Validator

from tests.engine.support import chat
from tiny_llm import SamplingParams, StructuredOutputs

pytest.importorskip("llguidance")

WORDS = ["name", "age", "of", "colour", "a b", "ü", "x/y", '"', "2", "tags"]


def random_schema(rng: random.Random, depth: int = 0):
    leaves = [
        string_schema,
        number_schema,
        enum_schema,
        const_schema,
        lambda rng: {"type": rng.choice(SIMPLE)},
    ]
    kinds = (
        leaves
        if depth >= 3
        else [*leaves, object_schema, object_schema, array_schema, choice_schema]
    )
    kind = rng.choice(kinds if depth else kinds[len(leaves) :])
    return kind(rng) if kind in leaves else kind(rng, depth + 1)


SIMPLE = ["boolean", "null", "integer"]


def string_schema(rng):
    return {
        "type": "string",
        **rng.choice(
            [
                {"maxLength": rng.randint(0, 9)},
                {"minLength": 1, "maxLength": rng.randint(1, 6)},
                {"pattern": rng.choice(["^[a-z]{2,5}$", "^\\d{3}-\\d{2}$", "^(yes|no|x+)$"])},
                {"format": rng.choice(["date", "uuid", "ipv4"])},
            ]
        ),
    }


def number_schema(rng):
    low = rng.randint(-99, 99)
    bounds = rng.choice(
        [
            {"minimum": low, "maximum": low + rng.randint(0, 999)},
            {"exclusiveMinimum": low, "exclusiveMaximum": low + rng.randint(2, 99)},
            {"multipleOf": rng.choice([2, 5, 10]), "minimum": 0, "maximum": 200},
        ]
    )
    return {"type": "integer", **bounds}


def const_schema(rng):
    return {"const": rng.choice([None, True, 0, -3, 1.5, "a\nb", [1, "x"], {"k": []}])}


def enum_schema(rng):
    return {"enum": rng.sample([*WORDS, 1, 2.5, None, False, ["a"]], rng.randint(1, 5))}


def array_schema(rng, depth):
    if rng.random() < 0.3:
        items = [random_schema(rng, depth) for _ in range(rng.randint(1, 3))]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    min_items = rng.randint(0, 2)
    return {
        "type": "array",
        "items": random_schema(rng, depth),
        "minItems": min_items,
        "maxItems": min_items + rng.randint(0, 2),
    }


def object_schema(rng, depth):
    names = rng.sample(WORDS, rng.randint(1, 4))
    schema = {
        "type": "object",
        "properties": {name: random_schema(rng, depth) for name in names},
        "required": rng.sample(names, rng.randint(0, len(names))),
        "additionalProperties": False,
    }
    if rng.random() < 0.2:
        schema["$defs"] = {"shared": random_schema(rng, depth)}
        schema["properties"][names[0]] = {"$ref": "#/$defs/shared"} if depth == 1 else True
    return schema


def choice_schema(rng, depth):
    return {"anyOf": [random_schema(rng, depth) for _ in range(rng.randint(2, 3))]}


def check(llm, seeds) -> tuple[int, int]:
    """Validates an output per seed; returns (complete outputs, rejected schemas)."""
    schemas = [random_schema(random.Random(seed)) for seed in seeds]
    params = [
        SamplingParams(
            seed=seed,
            temperature=(0, 0.7, 1.5)[seed % 3],
            max_tokens=300,
            structured_outputs=StructuredOutputs(json=schema),
        )
        for seed, schema in zip(seeds, schemas, strict=True)
    ]
    prompts = [chat(f"JSON for {json.dumps(schema)[:200]}") for schema in schemas]
    num_complete = num_rejected = 0
    for schema, output in zip(schemas, llm.generate(prompts, params), strict=True):
        Draft202012Validator.check_schema(schema)
        if output.error is not None:
            assert output.error.startswith("the grammar is rejected: "), (schema, output.error)
            num_rejected += 1
        elif output.finish_reason == "stop":
            Draft202012Validator(schema).validate(json.loads(output.text))
            num_complete += 1
        else:
            assert output.finish_reason == "length"
    return num_complete, num_rejected


@pytest.mark.slow
def test_many_schemas(llm, exhaustive):
    count = 1000 if exhaustive else 150
    num_complete, num_rejected = check(llm, range(count))
    print(f"{num_complete} complete, {num_rejected} rejected")
    assert num_complete >= 0.8 * count
    assert num_rejected <= 0.03 * count
