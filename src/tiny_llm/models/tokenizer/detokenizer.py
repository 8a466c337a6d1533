"""Tokens into text as they come, where a token may be a part of a character.

A byte-level BPE can cut UTF-8 anywhere: `é` can be two tokens, an emoji four. Bytes that are not a
whole character yet are held back, so text that was given out never changes.
"""

from collections.abc import Callable
from typing import Any

REPLACEMENT_CHARACTER = "\ufffd"  # what bytes that are no character become


class StreamingDetokenizer:
    """Assembles one answer; each answer has its own.

    As in `mlx_lm`, the first space of the answer is left out, and a lone space waits for what
    follows it.

    Args:
        token_bytes: the UTF-8 of a token, by its id.

    Attributes:
        text: the whole characters so far.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]):
        self.text = ""
        self._token_bytes = token_bytes
        self._pending = b""
        self._num_emitted = 0  # characters of `text` that `last_segment` has given

    def add_token(self, token: int) -> None:
        """Takes the next token's id."""
        new = self._token_bytes(token)
        self._pending += new
        is_whole = not self._pending.decode(errors="replace").endswith(REPLACEMENT_CHARACTER)
        if is_whole and new != b" ":
            self.finalize()

    def finalize(self) -> None:
        """Makes text of the held bytes; a character that is cut off becomes U+FFFD."""
        text = self._pending.decode(errors="replace")
        self.text += text if self.text else text.removeprefix(" ")
        self._pending = b""

    @property
    def last_segment(self) -> str:
        """The text since this was last asked for."""
        segment = self.text[self._num_emitted :]
        self._num_emitted = len(self.text)
        return segment


def detokenizer_keeping_space(tokenizer: Any) -> Any:
    """A new detokenizer of a tokenizer, which gives the first space of an answer too.

    Its `last_segment`s joined are the tokens' text; its `text` has a letter more at the beginning.
    """
    detokenizer = tokenizer.detokenizer
    if hasattr(tokenizer, "encode"):  # a stand-in for benchmarks knows no text
        for token in tokenizer.encode("a"):
            detokenizer.add_token(token)  # what follows it is not the beginning of a text
        detokenizer.finalize()
        letter = detokenizer.last_segment  # not inside the assertion, which `python -O` removes
        assert letter, "the letter is still to come"
    return detokenizer


def with_detokenizer(tokenizer: Any) -> Any:
    """A tokenizer as `mlx_lm.load` returns it: itself, or one of `transformers` wrapped into it."""
    if hasattr(tokenizer, "detokenizer"):
        return tokenizer
    from mlx_lm.tokenizer_utils import TokenizerWrapper  # takes seconds

    return TokenizerWrapper(tokenizer)


def decode_byte_level(characters: str) -> bytes:
    """What a token of a byte-level vocabulary stands for.

    Printable characters of Latin-1 stand for their own byte; the other 68 bytes have the
    characters from U+0100 on, in order, so that no token contains a space or a control character.
    Characters that stand for no byte are text.

    Source: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), and its
    published tokenizer.
    """
    return characters.translate(_BYTE_LEVEL).encode("latin-1")


class _ByteLevelMap(dict[int, str]):
    """Bytes by the code point of a character, each written as the character of Latin-1."""

    def __missing__(self, code_point: int) -> str:
        return chr(code_point).encode().decode("latin-1")


_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (byte for byte in range(256) if byte not in _PRINTABLE)
_BYTE_LEVEL = _ByteLevelMap({byte: chr(byte) for byte in _PRINTABLE})
_BYTE_LEVEL.update({0x100 + index: chr(byte) for index, byte in enumerate(_OTHERS)})
