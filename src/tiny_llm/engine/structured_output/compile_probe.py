"""Compiles grammars in a process of its own, to see whether that ends: `compiler.py` starts it.

llguidance bounds most of what a grammar can cost, but not all: the intersection of many patterns
takes minutes. This file is a program. It reads the tokenizer from a file, then a grammar a line.
"""

import json
import resource
import sys
from contextlib import suppress
from pathlib import Path

import llguidance

MAX_BYTES = 2**31  # of this process; a tokenizer of 150,000 tokens is a part of it


def main() -> None:
    """Answers each line with `{}`, or with what is wrong with its grammar."""
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    tokenizer = llguidance.LLTokenizer(
        settings["tokenizer"], n_vocab=settings["vocab_size"], eos_token=settings["eos_token_ids"]
    )
    limits = llguidance.LLParserLimits(**settings["limits"])
    with suppress(ValueError, OSError):  # macOS does not have this bound
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    print("{}", flush=True)
    for line in sys.stdin:
        matcher = llguidance.LLMatcher(
            tokenizer, json.loads(line)["grammar"], log_level=0, limits=limits
        )
        if not matcher.is_error():
            matcher.compute_bitmask()  # a grammar that no text matches says so only now
        answer = {"error": matcher.get_error()} if matcher.is_error() else {}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
