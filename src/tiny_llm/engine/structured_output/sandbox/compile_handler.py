"""Sandboxed trial compilation of grammars, for `../compiler.py`.

llguidance does not limit every cost of compiling a grammar: intersecting many patterns can take
minutes. A process, unlike a thread, can then be killed.
"""

import json
from collections.abc import Callable
from pathlib import Path

import llguidance


def make_handler(file: str) -> Callable[..., dict[str, str]]:
    """Returns a request handler configured by a JSON file; see `main.py`."""
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
