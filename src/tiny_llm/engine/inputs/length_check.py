"""Rejects over-long prompts before tokenization.

Tokenization takes at least a second per megabyte. The length of the vocabulary's longest token
gives a lower bound on a text's token count.
"""

import unicodedata
from typing import Any

from ...errors import UserError

MAX_UNCHECKED_CHARS = 1_000_000


def check_length(tokenizer: Any, what: str, text: str, max_tokens: int) -> None:
    """Rejects a text that exceeds the model's context with any tokenization.

    Args:
        tokenizer: the model's tokenizer.
        what: subject of the message, for example "the prompt".
        text: valid Unicode.
        max_tokens: the model's context length.

    Raises:
        UserError: the text is too long.
    """
    if len(text) <= MAX_UNCHECKED_CHARS or not _is_lossless(tokenizer, text):
        return
    longest = max(map(len, tokenizer.get_vocab()))  # in characters, one per byte
    min_tokens = len(text.encode()) // longest
    if min_tokens > max_tokens:
        raise UserError(
            f"{what} has {len(text):,} characters, at least {min_tokens:,} tokens; the model's "
            f"context holds {max_tokens:,}, output included."
        )


def _is_lossless(tokenizer: Any, text: str) -> bool:
    """Whether tokenization is lossless: no lossy normalization or stripping."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or type(backend.decoder).__name__ != "ByteLevel":
        return False
    normalizer = type(backend.normalizer).__name__
    if normalizer not in ("NoneType", "NFC") or not unicodedata.is_normalized("NFC", text):
        return False
    return not any(t.lstrip or t.rstrip for t in backend.get_added_tokens_decoder().values())
