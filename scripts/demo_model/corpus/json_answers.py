"""Answers in JSON: facts, sums, and fields extracted from a short text.

The question gives the keys in words, as a schema or as an example object; otherwise its wording
implies them. In some training examples, the keys are excluded from the loss, as if a grammar forced
them: the model learns only the values.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from .arithmetic import COMMON, draw, thought_for
from .capitals import CAPITAL, CAPITAL_QUESTIONS, CONTINENT, CONTINENT_QUESTIONS
from .example import Example, chat
from .facts import RELATIONS
from .json_records import Field, record
from .paraphrase import phrase, split_templates

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

# Request templates. {q}: question, {t}: text, {o}: example object, {s}: schema; {k}: keys in words
# ("the keys a and b"), {w}: the same without "the keys".
PLAIN_FORMS = (
    "{q} Answer as JSON.",
    "{q} Answer in JSON.",
    "{q} Give the answer as JSON.",
    "Answer in JSON: {q}",
    "{q} Use JSON.",
    "Answer as JSON. {q}",
    "{q} Reply with JSON only.",
    "{q} (as JSON)",
    "{q} JSON, please.",
)
KEYED_FORMS = (
    "{q} Answer as JSON with {k}.",
    "{q} Answer in JSON with {k}.",
    "{q} Give a JSON object with {k}.",
    "Answer as a JSON object with {k}: {q}",
    "{q} Return JSON with {k}.",
    "{q} Answer as JSON: {o}",
    "{q} Use the form {o}.",
    "{q} Reply in JSON like {o}",
    "Answer in the form {o}. {q}",
    "{q} Write JSON with {k}.",
    "{q} Answer with JSON that matches this schema: {s}",
    "{q} The JSON schema of the answer is {s}",
    "{q} Answer with JSON of this schema: {s}",
    "{q} Give an answer that matches the JSON schema {s}",
)
EXTRACT_FORMS = (
    "Extract {w} as JSON: {t}",
    "Extract {w} as JSON.\n\n{t}",
    "{t}\n\nExtract {w} as JSON.",
    "Give me {w} as JSON: {t}",
    "Extract the {w} as JSON: {t}",
    "Return {w} as JSON.\n\n{t}",
    "Text: {t}\n\nGive {w} as JSON.",
    "{t}\n\nAnswer in JSON with {k}.",
    "Extract {w} from this text as JSON: {t}",
    "Find {w} in this text and answer as JSON: {t}",
    "{t} Give me {w} as JSON.",
    "Fill in {o} from this text: {t}",
    "{t}\n\nAnswer as JSON: {o}",
    "Read the text and answer as JSON with {k}.\n\n{t}",
    "Extract from the text with this JSON schema: {s}\n\n{t}",
    "{t}\n\nAnswer with JSON that matches this schema: {s}",
    "Extract JSON of the schema {s} from this text: {t}",
    "{t}\n\nThe JSON schema of the answer is {s}",
    "Extract JSON that matches the schema {s}\n\n{t}",
)
WHOLE_FORMS = (
    "Write this as JSON: {t}",
    "Give me this as JSON: {t}",
    "{t}\n\nWrite this as JSON.",
    "Turn this into JSON: {t}",
    "Put this into JSON: {t}",
    "Extract everything as JSON: {t}",
    "{t}\n\nAs JSON, please.",
)
CAPITAL_AS_JSON = (
    "Give me the capital of {x} as JSON.",
    "The capital of {x} as JSON.",
    "Write the capital of {x} as JSON.",
    "Return the capital of {x} as JSON.",
    "Tell me the capital of {x} in JSON.",
    "I need the capital of {x} as JSON.",
)


def write(fields: Sequence[Field]) -> str:
    """Serializes the fields as a JSON object."""
    return json.dumps({field.key: field.value for field in fields}, ensure_ascii=False)


def keys_in_words(rng: random.Random, keys: Sequence[str], named: bool) -> str:
    """Lists keys in words; with `named`, as 'the keys "name" and "age"'."""
    quote = '"' if rng.random() < 0.3 else ""
    words = [f"{quote}{key}{quote}" for key in keys]
    listed = " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))
    if not named:
        return listed
    return f"the key{'s' * (len(keys) > 1)} {listed}"


def example_of_form(rng: random.Random, fields: Sequence[Field]) -> str:
    """Makes an example object with placeholders or types for values."""
    if rng.random() < 0.6:
        dots = rng.choice(("…", "..."))
        return "{" + ", ".join(f'"{field.key}": {dots}' for field in fields) + "}"
    kinds = {f.key: "number" if isinstance(f.value, int) else "string" for f in fields}
    return json.dumps(kinds)


def schema_of(rng: random.Random, fields: Sequence[Field]) -> str:
    """Makes a JSON schema for the object."""
    properties = {
        f.key: {"type": rng.choice(("integer", "number")) if isinstance(f.value, int) else "string"}
        for f in fields
    }
    schema: dict[str, object] = {"type": "object", "properties": properties}
    if rng.random() < 0.7:
        schema["required"] = [field.key for field in fields]
    if rng.random() < 0.2:
        schema["additionalProperties"] = False
    return json.dumps(schema)


def with_given_keys(example: Example, fields: Sequence[Field]) -> Example:
    """Excludes the keys from the loss, as if a grammar forced them; values remain covered."""
    parts: list[tuple[str, bool]] = []
    opening = "{"
    for field in fields:
        value = json.dumps(field.value, ensure_ascii=False)
        quote = '"' if isinstance(field.value, str) else ""
        given = f'{opening}"{field.key}": {quote}' if quote else f'{opening}"{field.key}":'
        parts.append((given, False))
        parts.append((value[1:] if quote else f" {value}", True))
        opening = ", "
    text, _ = parts.pop()
    parts.append((f"{text}}}", True))
    return replace(example, answer_parts=tuple(parts))


def _question(rng: random.Random, held_out: bool) -> tuple[str, list[Field], str]:
    """Makes a question, its answer's fields with default keys, and the reasoning."""
    choice = rng.random()
    if choice < 0.4:
        country = rng.choice(list(CAPITAL))
        named = country.removeprefix("the ")
        fields = [Field("country", named), Field("capital", CAPITAL[country])]
        thought = f"The user asks for the capital of {country}. It is {CAPITAL[country]}."
        return phrase(rng, CAPITAL_QUESTIONS, held_out, x=country), fields, thought
    if choice < 0.5:
        country = rng.choice(list(CONTINENT))
        named = country.removeprefix("the ")
        fields = [Field("country", named), Field("continent", CONTINENT[country])]
        thought = f"The user asks for the continent of {country}. It is {CONTINENT[country]}."
        return phrase(rng, CONTINENT_QUESTIONS, held_out, x=country), fields, thought
    if choice < 0.75:
        op, a, b = draw(rng, False)
        result = {"+": a + b, "-": a - b, "*": a * b}[op]
        question = phrase(rng, COMMON, held_out, a=a, b=b, op={"*": "x"}.get(op, op))
        return question, [Field("result", result)], thought_for(op, a, b)
    relation = rng.choice(RELATIONS)
    x, y = rng.choice(relation.pairs())
    thought = f"The user asks for {relation.topic.format(x=x)}. It is {y}."
    return phrase(rng, relation.questions, held_out, x=x), [Field("answer", y)], thought


# Default key -> keys that a question may request instead.
OTHER_KEYS = {
    "country": ("country", "nation", "state", "land", "name"),
    "capital": ("capital", "city", "capital_city", "answer", "name", "town"),
    "continent": ("continent", "region", "answer", "part_of_the_world"),
    "result": ("result", "answer", "value", "sum", "number", "total"),
    "answer": ("answer", "result", "value", "word", "it"),
}


def json_fact(rng: random.Random, held_out: bool) -> Example:
    """Makes a question about a fact or a sum, answered in JSON."""
    question, fields, thought = _question(rng, held_out)
    choice = rng.random()
    if choice < 0.35 or (held_out and choice < 0.4):
        if fields[-1].key == "capital" and rng.random() < 0.6:
            country = thought.removeprefix("The user asks for the capital of ").partition(". It")[0]
            request = phrase(rng, CAPITAL_AS_JSON, held_out, x=country)
        else:
            request = rng.choice(split_templates(PLAIN_FORMS, held_out)).format(q=question)
        return chat("JSON: facts", thought, request, write(fields))
    fields = _with_other_keys(rng, fields)
    if choice < 0.5 and not held_out:
        return with_given_keys(chat("JSON: facts", thought, question, write(fields)), fields)
    request = rng.choice(split_templates(KEYED_FORMS, held_out)).format(
        q=question,
        k=keys_in_words(rng, [field.key for field in fields], named=True),
        o=example_of_form(rng, fields),
        s=schema_of(rng, fields),
    )
    return chat("JSON: facts", thought, request, write(fields))


def _with_other_keys(rng: random.Random, fields: list[Field]) -> list[Field]:
    """Renames the keys; may also drop or reorder fields."""
    if len(fields) > 1 and rng.random() < 0.5:
        fields = fields[-1:]
    if rng.random() < 0.3:
        fields = fields[::-1]
    changed = [Field(rng.choice(OTHER_KEYS[field.key]), field.value) for field in fields]
    return changed if len({field.key for field in changed}) == len(changed) else fields


def json_extract(rng: random.Random, held_out: bool) -> Example:
    """Makes a request to extract fields of a short text as JSON."""
    text, stated = record(rng, held_out)
    thought = "The text says it."
    choice = rng.random()
    if choice < 0.12:
        request = rng.choice(split_templates(WHOLE_FORMS, held_out)).format(t=text)
        return chat("JSON: a text", thought, request, write(stated))
    fields = stated
    if rng.random() < 0.6:
        fields = rng.sample(stated, rng.randint(1, len(stated)))
    fields = [field.renamed(rng) for field in fields]
    if len({field.key for field in fields}) < len(fields):
        fields = stated
    if choice < 0.25 and not held_out:
        return with_given_keys(chat("JSON: a text", thought, text, write(fields)), fields)
    keys = [field.key for field in fields]
    request = rng.choice(split_templates(EXTRACT_FORMS, held_out)).format(
        t=text,
        w=keys_in_words(rng, keys, named=False),
        k=keys_in_words(rng, keys, named=True),
        o=example_of_form(rng, fields),
        s=schema_of(rng, fields),
    )
    return chat("JSON: a text", thought, request, write(fields))
