"""Sandbox handlers: trial compilation of grammars, validation of outputs.

Loaded by `sandboxed_process.py` without importing `tiny_llm`. Each handler imports only its own
library, which counts toward the process's memory limit.
"""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

MAX_VIOLATIONS = 5

Handler = Callable[..., dict[str, Any]]


def make_handler(kind: str, *arguments: str) -> Handler:
    handlers: dict[str, Callable[..., Handler]]
    handlers = {"compile": make_compiler, "validate": make_validator}
    return handlers[kind](*arguments)


def make_compiler(file: str) -> Handler:
    """Handler that compiles a grammar with the settings in a JSON file, for `compiler.py`.

    llguidance does not limit every cost of compiling a grammar: intersecting many patterns can take
    minutes.
    """
    import llguidance

    settings = json.loads(Path(file).read_text(encoding="utf-8"))
    tokenizer = llguidance.LLTokenizer(
        settings["tokenizer"], n_vocab=settings["vocab_size"], eos_token=settings["eos_token_ids"]
    )
    limits = llguidance.LLParserLimits(**settings["limits"])

    def compile_grammar(grammar: str) -> dict[str, str]:
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # sets the error if the grammar matches no text
        return {"error": matcher.get_error()} if matcher.is_error() else {}

    return compile_grammar


def make_validator() -> Handler:
    """Handler that finds the schema keywords that a value violates, for `relaxation.py`."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match
    from jsonschema.validators import validator_for
    from referencing import Registry

    def validate(schema: Any, instance: Any) -> dict[str, list[str]]:
        """Returns JSON pointers to the violated keywords."""
        try:
            kind = validator_for(schema, default=Draft202012Validator)
            # The registry is empty, so remote references are errors.
            errors = islice(kind(schema, registry=Registry()).iter_errors(instance), MAX_VIOLATIONS)
            pointers = [_pointer(best_match([error])) for error in errors]
        except Exception as error:  # invalid schemas and patterns raise many exception types
            raise ValueError(type(error).__name__) from error
        return {"violated": list(dict.fromkeys(pointers))}

    return validate


def _pointer(error: Any) -> str:
    steps = [str(step).replace("~", "~0").replace("/", "~1") for step in error.absolute_schema_path]
    return "".join(f"/{step}" for step in steps)
