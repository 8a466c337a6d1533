"""Length check: rejects over-long prompts before they are fully tokenized.

Tokenization takes a second or more per megabyte. Text that looks too long for the model's context
is tokenized piece by piece, until it certainly exceeds the limit.
"""

from typing import Any

from ...errors import UserError

PIECE_CHARS = 2**16
UNCHECKED_CHARS_PER_TOKEN = 8  # English has 4 to 5
# Tokens allowed in the pieces, as a multiple of the context: cutting text changes a few of them.
MARGIN = 2


def check_length(tokenizer: Any, what: str, text: str, max_tokens: int) -> None:
    """Rejects text with far more tokens than the model's context length.

    Args:
        tokenizer: the model's tokenizer.
        what: subject of the error message, for example "the prompt".
        text: valid Unicode.
        max_tokens: the model's context length.

    Raises:
        UserError: the text is too long.
    """
    if len(text) <= max(PIECE_CHARS, UNCHECKED_CHARS_PER_TOKEN * max_tokens):
        return
    num_tokens = 0
    for start in range(0, len(text), PIECE_CHARS):
        piece = text[start : start + PIECE_CHARS]
        num_tokens += len(tokenizer.encode(piece, add_special_tokens=False))
        if num_tokens > MARGIN * max_tokens:
            raise UserError(
                f"{what} is too long: the first {start + len(piece):,} of its {len(text):,} "
                f"characters are about {num_tokens:,} tokens, but the model's context length is "
                f"{max_tokens:,} tokens, including the output."
            )
