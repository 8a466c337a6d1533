"""Trial compilation of grammars, in a process that `compiler.py` can kill.

llguidance does not limit every cost of compiling a grammar: intersecting many patterns can take
minutes. This program reads the tokenizer from a file, then one grammar per line of standard input.
"""

import json
import resource
import sys
from contextlib import suppress
from pathlib import Path

import llguidance

MAX_BYTES = 2**31  # address space, including a tokenizer of 150,000 tokens


def main() -> None:
    """Replies to each line of standard input with `{}` or the grammar's error."""
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    tokenizer = llguidance.LLTokenizer(
        settings["tokenizer"], n_vocab=settings["vocab_size"], eos_token=settings["eos_token_ids"]
    )
    limits = llguidance.LLParserLimits(**settings["limits"])
    with suppress(ValueError, OSError):  # not supported on macOS
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    print("{}", flush=True)
    for line in sys.stdin:
        grammar = json.loads(line)["grammar"]
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # detects grammars that match no text
        reply = {"error": matcher.get_error()} if matcher.is_error() else {}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
