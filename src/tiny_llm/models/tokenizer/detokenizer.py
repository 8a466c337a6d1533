"""Streaming detokenization, and the bytes of each token.

A token may end in the middle of a UTF-8 sequence: `é` can be two tokens, an emoji four. The
detokenizer holds back incomplete sequences, so emitted text never changes.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tokenizers

REPLACEMENT_CHARACTER = "\ufffd"  # replaces invalid UTF-8

SENTENCEPIECE_SPACE = "\u2581"
BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")  # a byte of SentencePiece's byte fallback
SENTENCEPIECE_DECODERS = {"ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"}


@dataclass(frozen=True)
class TokenDecoder:
    """Properties of a `tokenizer.json` decoder that streaming needs."""

    to_bytes: Callable[[str], bytes]  # converts a token, as spelled in the vocabulary
    added_to_bytes: Callable[[str], bytes]  # the same for an added token
    strips_space: bool  # whether a text's leading space is removed

    @classmethod
    def of(cls, decoder: tokenizers.decoders.Decoder | None) -> "TokenDecoder":
        """Streaming counterpart of a decoder; ValueError for an unsupported one."""
        state: dict[str, Any] = {} if decoder is None else json.loads(decoder.__getstate__())
        parts = state.get("decoders", [state])
        kinds = {part.get("type") for part in parts}
        if kinds == {"ByteLevel"}:
            return cls(decode_byte_level, str.encode, True)  # strips the space as in `mlx_lm`
        if kinds <= SENTENCEPIECE_DECODERS:
            strips = any(part.get("prepend_scheme") in ("always", "first") for part in parts)
            strips = strips or "Strip" in kinds
            return cls(decode_sentencepiece, decode_sentencepiece, strips)
        found = ", ".join(map(str, kinds))
        raise ValueError(
            f"tokenizer.json has the decoder {found}, expected ByteLevel, or SentencePiece's "
            "Metaspace or ByteFallback"
        )


class StreamingDetokenizer:
    """Detokenizes one output incrementally; `text` has all complete characters so far.

    As in `mlx_lm`, a token that is a single space is held back until the next token.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], strips_space: bool = True):
        self._token_bytes = token_bytes
        self._strips_space = strips_space
        self.reset()

    def reset(self) -> None:
        """Discards all tokens."""
        self.text = ""
        self._pending = b""
        self._num_emitted = 0  # characters of `text` returned by `last_segment`

    def add_token(self, token: int) -> None:
        new = self._token_bytes(token)
        self._pending += new
        is_complete = not self._pending.decode(errors="replace").endswith(REPLACEMENT_CHARACTER)
        if is_complete and new != b" ":
            self.finalize()

    def finalize(self) -> None:
        """Flushes the pending bytes; an incomplete character becomes U+FFFD."""
        text = self._pending.decode(errors="replace")
        self.text += text.removeprefix(" ") if self._strips_space and not self.text else text
        self._pending = b""

    @property
    def last_segment(self) -> str:
        """Text added since the last access."""
        segment = self.text[self._num_emitted :]
        self._num_emitted = len(self.text)
        return segment


def detokenizer_with_leading_space(tokenizer: Any) -> Any:
    """Creates a detokenizer that keeps a leading space.

    A detokenizer strips its first token's leading space, so an "a" is decoded first. Use only
    `last_segment`, because `text` still starts with the "a".
    """
    detokenizer = tokenizer.detokenizer
    if hasattr(tokenizer, "encode"):  # the benchmarks' stub tokenizer has no encoder
        for token in tokenizer.encode("a"):
            detokenizer.add_token(token)
        detokenizer.finalize()
        _ = detokenizer.last_segment  # discards the "a"
    return detokenizer


def with_detokenizer(tokenizer: Any) -> Any:
    """Adds a detokenizer to a tokenizer that has none, as `mlx_lm.load` does."""
    if hasattr(tokenizer, "detokenizer"):
        return tokenizer
    from mlx_lm.tokenizer_utils import TokenizerWrapper  # takes seconds

    return TokenizerWrapper(tokenizer)


def decode_byte_level(characters: str) -> bytes:
    """Decodes a token from a byte-level vocabulary.

    A printable Latin-1 character stands for its Latin-1 byte; characters from U+0100 stand for the
    remaining 68 bytes, in order, so that no token contains a space or a control character. All
    other characters are plain text.

    Source: GPT-2's published tokenizer (Radford et al., 2019).
    """
    return characters.translate(_BYTE_LEVEL).encode("latin-1")


def decode_sentencepiece(token: str) -> bytes:
    byte = BYTE_TOKEN.fullmatch(token)
    if byte is not None:
        return bytes([int(byte[1], 16)])
    return token.replace(SENTENCEPIECE_SPACE, " ").encode()


class _ByteLevelMap(dict[int, str]):
    """Maps a code point to UTF-8 bytes by default, each as a Latin-1 character."""

    def __missing__(self, code_point: int) -> str:
        return chr(code_point).encode().decode("latin-1")


_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (byte for byte in range(256) if byte not in _PRINTABLE)
_BYTE_LEVEL = _ByteLevelMap({byte: chr(byte) for byte in _PRINTABLE})
_BYTE_LEVEL.update({0x100 + index: chr(byte) for index, byte in enumerate(_OTHERS)})
