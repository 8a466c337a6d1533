"""`pdm run json-demo`: JSON with and without a grammar, for day 5.4.

At a high temperature, unconstrained output seldom matches the schema. With a grammar, all outputs
match, and forced tokens need no extra steps.
"""

import argparse
import json
import sys
from typing import Any

from .solution_flag import parse_with_tree, restart_in_tree
from .tasks import day_of

QUESTION = [{"role": "user", "content": "Give me the capital of Japan as JSON."}]
CONTINENTS = ["Africa", "America", "Asia", "Europe", "Oceania"]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "country": {"type": "string", "maxLength": 20},
        "continent": {"enum": CONTINENTS},
    },
    "required": ["city", "country", "continent"],
    "additionalProperties": False,
}


def is_json(text: str) -> bool:
    """Whether a text is JSON."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def matches_schema(text: str) -> bool:
    """Whether a text is JSON with the schema's keys and types."""
    value = json.loads(text) if is_json(text) else None
    return (
        isinstance(value, dict)
        and sorted(value) == sorted(SCHEMA["required"])
        and all(isinstance(one, str) for one in value.values())
        and value["continent"] in CONTINENTS
    )


def marked_steps(llm: Any, params: Any) -> tuple[str, int, int]:
    """Generates an output; returns (text with ⟨forced tokens⟩, tokens, steps)."""
    llm.add_request(QUESTION, params)
    text, num_tokens, num_steps = "", 0, 0
    while llm.has_unfinished_requests:
        for output in llm.step():
            *forced, sampled = output.token_ids  # forced tokens precede the sampled one
            decode = llm.tokenizer.decode
            is_end = sampled in llm.tokenizer.eos_token_ids
            text += f"⟨{decode(forced)}⟩" if forced else ""
            text += "" if is_end else decode([sampled])
            num_tokens += len(output.token_ids)
            num_steps += 1
    return text, num_tokens, num_steps


def main() -> int:
    """Prints how many outputs match with and without a grammar, and one output's decoding steps."""
    parser = argparse.ArgumentParser(
        prog="json-demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--temperature", type=float, default=2.0)
    parser.add_argument("--outputs", type=int, default=10)
    args, tree = parse_with_tree(parser)
    restart_in_tree(tree, "tools.course.json_demo", day=day_of(5, 4))

    from tiny_llm import LLM, SamplingParams, StructuredOutputs
    from tiny_llm.errors import TaskNotImplemented

    llm = LLM("demo", kv_cache_bytes=2**25)
    print(f"{QUESTION[0]['content']} (temperature {args.temperature:g})")
    try:
        for name, form in (("free", None), ("grammar", StructuredOutputs(json=SCHEMA))):
            params = SamplingParams(
                temperature=args.temperature,
                seed=0,
                n=args.outputs,
                max_tokens=60,
                structured_outputs=form,
            )
            [request] = llm.generate([QUESTION], params)
            if request.error is not None:
                print(request.error, file=sys.stderr)
                return 1
            texts = [output.text for output in request.outputs]
            valid, matching = sum(map(is_json, texts)), sum(map(matches_schema, texts))
            print(
                f"{name:8} of {len(texts)}, {valid} are JSON, {matching} match the schema; first:"
            )
            print(f"         {texts[0]!r}")
        params = SamplingParams(
            temperature=0, max_tokens=60, structured_outputs=StructuredOutputs(json=SCHEMA)
        )
        text, num_tokens, num_steps = marked_steps(llm, params)
    except TaskNotImplemented as error:
        print(error, file=sys.stderr)
        return 1
    print(f"forced   {text}")
    print(f"         {num_tokens} tokens in {num_steps} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
