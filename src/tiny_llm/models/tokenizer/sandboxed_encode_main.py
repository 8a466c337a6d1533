"""Encodes texts in a process of its own: `sandboxed_encode.py` starts it.

This file is a program. It reads a tokenizer from the file that its first argument names, and then a
text a line. What the library does with a regular expression that takes too many steps is no
exception of Python's but a panic; here that ends an answer, or at most this process.
"""

import json
import resource
import sys
from contextlib import suppress

import tokenizers


def main() -> None:
    """Answers each line with the token ids of its text, or with what is wrong."""
    tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
    tokenizer.no_truncation()
    tokenizer.no_padding()
    num_bytes = int(sys.argv[2])
    with suppress(ValueError, OSError):  # macOS does not have this bound
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
    print("{}", flush=True)
    for line in sys.stdin:
        payload = json.loads(line)
        response: dict[str, object]
        try:
            found = tokenizer.encode(payload["text"], add_special_tokens=payload["special"])
            response = {"ids": found.ids}
        except BaseException as error:  # a panic is no Exception
            response = {"error": f"the tokenizers library gave up ({error})".replace("\n", " ")}
        print(json.dumps(response), flush=True)


if __name__ == "__main__":
    main()
