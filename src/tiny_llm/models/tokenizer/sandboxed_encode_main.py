"""Program that encodes texts for `sandboxed_encode.py`.

    python sandboxed_encode_main.py TOKENIZER_JSON MAX_BYTES

Requests are JSON lines. A regular expression that takes too many steps makes the library panic,
which fails the request or, at worst, this process.
"""

import json
import resource
import sys
from contextlib import suppress

import tokenizers


def main() -> None:
    """Responds to each request with token ids or an error."""
    num_bytes = int(sys.argv[2])
    _limit_memory(2 * num_bytes)  # loading takes more memory than encoding
    try:
        tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
    except BaseException as error:  # a panic is not an Exception
        print(json.dumps({"error": _one_line(error)}), flush=True)
        return
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _limit_memory(num_bytes)
    print("{}", flush=True)
    for line in sys.stdin:
        payload = json.loads(line)
        response: dict[str, object]
        try:
            encoding = tokenizer.encode(payload["text"], add_special_tokens=payload["special"])
            response = {"ids": encoding.ids}
        except BaseException as error:
            response = {"error": f"the tokenizers library failed ({_one_line(error)})"}
        print(json.dumps(response), flush=True)


def _limit_memory(num_bytes: int) -> None:
    with suppress(ValueError, OSError):  # macOS does not support this limit
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


if __name__ == "__main__":
    main()
