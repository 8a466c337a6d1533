"""Request handler that encodes texts for `sandboxed_encode.py`.

A regular expression that takes too many steps makes the `tokenizers` library panic, which fails the
request or, at worst, ends the process.
"""

from collections.abc import Callable

import tokenizers


def make_handler(file: str) -> Callable[..., dict[str, list[int]]]:
    """Returns the handler for a `tokenizer.json`; see `sandbox_main.py`."""
    tokenizer = tokenizers.Tokenizer.from_file(file)
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def encode(text: str, special: bool) -> dict[str, list[int]]:
        try:
            return {"ids": tokenizer.encode(text, add_special_tokens=special).ids}
        except BaseException as error:  # a panic is not an Exception
            raise ValueError(f"the tokenizers library failed ({error})") from error

    return encode
