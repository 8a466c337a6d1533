"""Streaming detokenizer for byte-level BPE.

A token may end in the middle of a UTF-8 sequence: `é` can be two tokens, an emoji four. Incomplete
sequences are held back, so emitted text never changes.
"""

from collections.abc import Callable
from typing import Any

REPLACEMENT_CHARACTER = "\ufffd"  # replaces invalid UTF-8


class StreamingDetokenizer:
    """Detokenizes one output incrementally.

    As in `mlx_lm`, a leading space is stripped, and a token that is a single space is held back
    until the next token.

    Args:
        token_bytes: token id -> bytes.

    Attributes:
        text: all complete characters so far.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]):
        self.text = ""
        self._token_bytes = token_bytes
        self._pending = b""
        self._num_emitted = 0  # characters of `text` returned by `last_segment`

    def add_token(self, token: int) -> None:
        """Appends a token."""
        new = self._token_bytes(token)
        self._pending += new
        is_whole = not self._pending.decode(errors="replace").endswith(REPLACEMENT_CHARACTER)
        if is_whole and new != b" ":
            self.finalize()

    def finalize(self) -> None:
        """Flushes the pending bytes; an incomplete character becomes U+FFFD."""
        text = self._pending.decode(errors="replace")
        self.text += text if self.text else text.removeprefix(" ")
        self._pending = b""

    @property
    def last_segment(self) -> str:
        """Text since the last access."""
        segment = self.text[self._num_emitted :]
        self._num_emitted = len(self.text)
        return segment


def detokenizer_keeping_space(tokenizer: Any) -> Any:
    """Creates a detokenizer that keeps a leading space.

    The concatenated `last_segment`s are the tokens' text; `text` has an extra leading letter.
    """
    detokenizer = tokenizer.detokenizer
    if hasattr(tokenizer, "encode"):  # the benchmarks' stub tokenizer has no encoder
        for token in tokenizer.encode("a"):
            detokenizer.add_token(token)  # only the first token loses its space
        detokenizer.finalize()
        _ = detokenizer.last_segment  # drops the letter
    return detokenizer


def with_detokenizer(tokenizer: Any) -> Any:
    """Wraps a `transformers` tokenizer like `mlx_lm.load`; returns other tokenizers unchanged."""
    if hasattr(tokenizer, "detokenizer"):
        return tokenizer
    from mlx_lm.tokenizer_utils import TokenizerWrapper  # takes seconds

    return TokenizerWrapper(tokenizer)


def decode_byte_level(characters: str) -> bytes:
    """Decodes a token from a byte-level vocabulary.

    A printable Latin-1 character stands for its own byte; characters from U+0100 stand for the
    other 68 bytes, in order, so that no token contains a space or a control character. All other
    characters are plain text.

    Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), and its
    published tokenizer.
    """
    return characters.translate(_BYTE_LEVEL).encode("latin-1")


class _ByteLevelMap(dict[int, str]):
    """Code point of a character -> its bytes, written as Latin-1 characters."""

    def __missing__(self, code_point: int) -> str:
        return chr(code_point).encode().decode("latin-1")


_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (byte for byte in range(256) if byte not in _PRINTABLE)
_BYTE_LEVEL = _ByteLevelMap({byte: chr(byte) for byte in _PRINTABLE})
_BYTE_LEVEL.update({0x100 + index: chr(byte) for index, byte in enumerate(_OTHERS)})
