"""Texts that are certainly too long for a model, found before they are cut into tokens.

Encoding takes a second a megabyte or more. A token is at most as long as the longest of the
vocabulary, so the length of a text says how many tokens it has at least.
"""

import unicodedata
from typing import Any

from ...errors import UserError

MAX_UNCHECKED_CHARS = 1_000_000  # characters


def check_length(tokenizer: Any, what: str, text: str, max_tokens: int) -> None:
    """Refuses a text that has more tokens than a model's context, however it is cut.

    Args:
        tokenizer: of the model.
        what: the text, for the sentence: "the prompt".
        text: whole characters.
        max_tokens: tokens of the context.

    Raises:
        UserError: the text is refused.
    """
    if len(text) <= MAX_UNCHECKED_CHARS or not _is_lossless(tokenizer, text):
        return
    longest = max(map(len, tokenizer.get_vocab()))  # a byte is a character there
    fewest = len(text.encode()) // longest
    if fewest > max_tokens:
        raise UserError(
            f"{what} has {len(text):,} characters, which are at least {fewest:,} tokens; the "
            f"model's context holds {max_tokens:,} with the answer: give less text."
        )


def _is_lossless(tokenizer: Any, text: str) -> bool:
    """Whether every byte of a text is in a token: nothing is dropped or made shorter before."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or type(backend.decoder).__name__ != "ByteLevel":
        return False
    normalizer = type(backend.normalizer).__name__
    if normalizer not in ("NoneType", "NFC") or not unicodedata.is_normalized("NFC", text):
        return False
    return not any(t.lstrip or t.rstrip for t in backend.get_added_tokens_decoder().values())
