"""Program that encodes texts for `sandboxed_encode.py`.

    python sandboxed_encode_main.py TOKENIZER_JSON MAX_BYTES

Reads requests as lines of JSON. A regular expression with too many steps makes the library panic,
which fails a request, or at most this process.
"""

import json
import resource
import sys
from contextlib import suppress

import tokenizers


def main() -> None:
    """Responds to each line with token ids or an error."""
    tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
    tokenizer.no_truncation()
    tokenizer.no_padding()
    num_bytes = int(sys.argv[2])
    with suppress(ValueError, OSError):  # macOS does not support this limit
        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
    print("{}", flush=True)
    for line in sys.stdin:
        payload = json.loads(line)
        response: dict[str, object]
        try:
            encoding = tokenizer.encode(payload["text"], add_special_tokens=payload["special"])
            response = {"ids": encoding.ids}
        except BaseException as error:  # a panic is not an Exception
            response = {"error": f"the tokenizers library gave up ({error})".replace("\n", " ")}
        print(json.dumps(response), flush=True)


if __name__ == "__main__":
    main()
