"""Tokenizer for `tokenizer.json`, streaming detokenizer, draft-tokenizer checks.

The tokenizer has `mlx_lm`'s interface and uses the `tokenizers` library directly: importing
`transformers` takes seconds, and for many tokenizer classes it replaces parts of `tokenizer.json`,
which changes the token ids.

A token may end in the middle of a UTF-8 sequence: `é` can be two tokens, an emoji four. The
streaming detokenizer holds back incomplete sequences, so emitted text never changes.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import tokenizers

from ...errors import UserError, short_repr
from ..checkpoint.tokenizer_config import SPECIAL_TOKEN_FIELDS, token_text
from .chat_template import (
    DEFAULT_TAGS,
    choose_template,
    find_chat_template,
    render_template,
    think_tags,
)

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
    """Maps a code point that has no entry to its UTF-8 bytes, as Latin-1 characters."""

    def __missing__(self, code_point: int) -> str:
        return chr(code_point).encode().decode("latin-1")


_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (byte for byte in range(256) if byte not in _PRINTABLE)
_BYTE_LEVEL = _ByteLevelMap({byte: chr(byte) for byte in _PRINTABLE})
_BYTE_LEVEL.update({0x100 + index: chr(byte) for index, byte in enumerate(_OTHERS)})


# Disables the library's threads, which do not speed up batches of one and cause warnings in forks.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# `apply_chat_template` arguments that only `transformers` implements.
TRANSFORMERS_ONLY_ARGUMENTS = {
    *("chat_template", "continue_final_message", "max_length", "padding"),
    *("return_assistant_tokens_mask", "return_dict", "return_tensors", "sanitize_control_tokens"),
    *("tokenizer_kwargs", "truncation"),
}


class Tokenizer:
    """Drop-in replacement for the tokenizer from `mlx_lm.load`.

    Raises:
        ValueError: the decoder of `tokenizer.json` is not supported.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: tokenizers.Tokenizer,
        config: Mapping[str, Any],
        eos_token_ids: set[int],
    ):
        self.eos_token_ids = eos_token_ids
        self.chat_template = find_chat_template(folder, config)
        self._tokenizer = tokenizer
        self._decoder = TokenDecoder.of(tokenizer.decoder)
        self._named_tokens = {
            name: token_text(config[name])
            for name in SPECIAL_TOKEN_FIELDS
            if config.get(name) is not None
        }
        self._added_tokens = {
            token_id: self._decoder.added_to_bytes(token.content)
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
        }

    @property
    def has_chat_template(self) -> bool:
        return self.chat_template is not None

    @property
    def has_thinking(self) -> bool:
        """Whether the vocabulary has `<think>` tags, or the chat template other reasoning tags."""
        is_known = all(self._tokenizer.token_to_id(tag) is not None for tag in DEFAULT_TAGS)
        return is_known or think_tags(self) != DEFAULT_TAGS

    @property
    def backend_tokenizer(self) -> tokenizers.Tokenizer:
        """The underlying `tokenizers.Tokenizer`, named as in `transformers`."""
        return self._tokenizer

    @property
    def detokenizer(self) -> StreamingDetokenizer:
        return StreamingDetokenizer(self.token_bytes, self._decoder.strips_space)

    def token_bytes(self, token: int) -> bytes:
        """Bytes of a token id; empty for padding ids beyond the vocabulary."""
        if token in self._added_tokens:
            return self._added_tokens[token]
        return self._decoder.to_bytes(self._tokenizer.id_to_token(token) or "")

    def encode(self, text: str, add_special_tokens: bool = True, **others: Any) -> list[int]:
        """Encodes a text, in which special tokens are recognized; UserError if the library fails.

        `others` are arguments that only `transformers` implements.
        """
        options = {"add_special_tokens": add_special_tokens}
        if others:
            return self.mlx_lm.encode(text, **options, **others)
        try:
            # A batch of one, because only batch calls release the GIL.
            (encoding,) = self._tokenizer.encode_batch([text], **options)
        except BaseException as error:
            raise_library_error("the tokenizer cannot encode the text", error)
        return encoding.ids

    def decode(
        self, ids: int | Sequence[int], skip_special_tokens: bool = False, **others: Any
    ) -> str:
        """Decodes token ids; invalid UTF-8 becomes U+FFFD."""
        if others:
            return self.mlx_lm.decode(ids, skip_special_tokens=skip_special_tokens, **others)
        ids = [ids] if isinstance(ids, int) else [int(token) for token in ids]
        (text,) = self._tokenizer.decode_batch([ids], skip_special_tokens=skip_special_tokens)
        return text

    def get_vocab(self) -> dict[str, int]:
        """Vocabulary: token (spelled as in `tokenizer.json`) -> id."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    def add_eos_token(self, token: str | int) -> None:
        is_id = str(token).isdecimal()
        token_id = int(token) if is_id else self._tokenizer.token_to_id(str(token))
        if token_id is None:
            raise ValueError(f"'{token}' is not in the tokenizer's vocabulary")
        self.eos_token_ids.add(token_id)

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] | None = None,
        *,
        tokenize: bool = True,
        **variables: Any,
    ) -> Any:
        """Renders a conversation with the chat template.

        Args:
            conversation: messages {"role": …, "content": …}, plus other keys the template reads.
            variables: template variables such as `add_generation_prompt` and `enable_thinking`
                (default: `has_thinking`); other arguments as in `transformers`.

        Returns:
            Token ids, or the text if `tokenize` is False.

        Raises:
            ValueError: there is no chat template or no message; see also `render_template`.
        """
        variables["tools"] = tools
        if not self._can_render(conversation, variables):
            return self.mlx_lm.apply_chat_template(conversation, tokenize=tokenize, **variables)
        assert self.chat_template is not None
        variables = {
            **self._named_tokens,
            "documents": None,
            "add_generation_prompt": False,
            "enable_thinking": self.has_thinking,
            **variables,
        }
        template = choose_template(self.chat_template, has_tools=tools is not None)
        text = render_template(template, conversation, **variables)
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'")
        return getattr(self.mlx_lm, name)

    @cached_property
    def mlx_lm(self) -> Any:
        """The same tokenizer as `mlx_lm`'s class, with all features of `transformers`."""
        from mlx_lm.tokenizer_utils import TokenizerWrapper  # takes seconds
        from transformers import PreTrainedTokenizerFast

        inner = PreTrainedTokenizerFast(
            tokenizer_object=self._tokenizer,
            chat_template=self.chat_template,
            clean_up_tokenization_spaces=False,
            **self._named_tokens,
        )
        return TokenizerWrapper(inner, lambda _: self.detokenizer, self.eos_token_ids)

    def _can_render(self, messages: Any, variables: Mapping[str, Any]) -> bool:
        return (
            self.chat_template is not None
            and not TRANSFORMERS_ONLY_ARGUMENTS & set(variables)
            and isinstance(messages, Sequence)
            and bool(messages)
            and all(isinstance(message, dict) for message in messages)
            and all(isinstance(tool, dict) for tool in variables["tools"] or ())
        )


def raise_library_error(failure: str, error: BaseException) -> NoReturn:
    """Raises UserError, beginning with `failure`, for an error of `tokenizers`, else `error`.

    The library's errors are plain Exceptions; its panics are a separate BaseException.
    """
    if type(error) is not Exception and type(error).__name__ != "PanicException":
        raise error
    reason = " ".join(str(error).split()).rstrip(".")
    raise UserError(f"{failure}: {reason}.") from error


# Text that tokenizers with the same vocabulary may encode differently: contractions, digits,
# whitespace, code, several scripts, a decomposed letter and a special token.
SAMPLE_TEXT = (
    "It's the 1234567th test, isn't IT?\n\n    def f(x):\n\treturn x ** 2  # naïve  \r\n"
    "Größe e\u0301 数学、こんにちは Привет مرحبا 😀👍🏽 <|im_start|>"
)


def check_same_vocabulary(draft_tokenizer: Any, tokenizer: Any) -> None:
    """Checks that the draft and target tokenizers have the same vocabulary.

    Skips tokenizers without `get_vocab`.

    Raises:
        UserError: the vocabularies differ.
    """
    if not (hasattr(draft_tokenizer, "get_vocab") and hasattr(tokenizer, "get_vocab")):
        return
    drafts, targets = draft_tokenizer.get_vocab(), tokenizer.get_vocab()
    if drafts == targets:
        return
    token, token_id = min(drafts.items() ^ targets.items(), key=lambda item: item[1])
    raise UserError(
        "the draft model's tokenizer differs from the target's: they have "
        f"{len(drafts)} and {len(targets)} tokens, and first differ at token {token_id} "
        f"({token!r}); draft and target must share one vocabulary."
    )


def check_same_tokenizer(draft_tokenizer: Any, tokenizer: Any, prompt: object = "") -> None:
    """Checks that the tokenizers agree in vocabulary, encoding and end tokens.

    Args:
        prompt: text to compare encodings on, in addition to `SAMPLE_TEXT`.
    """
    check_same_vocabulary(draft_tokenizer, tokenizer)
    pair = (draft_tokenizer, tokenizer)
    if not all(hasattr(each, "get_vocab") for each in pair):
        return
    draft_ends, ends = (sorted(getattr(each, "eos_token_ids", None) or ()) for each in pair)
    if draft_ends != ends:
        raise UserError(
            f"the draft model's end tokens are {draft_ends} and the target's {ends}; draft and "
            "target must have the same end tokens."
        )
    for text in (SAMPLE_TEXT, prompt):
        if isinstance(text, str):
            draft_ids, ids = (list(each.encode(text)) for each in pair)
            if draft_ids != ids:
                raise UserError(
                    "the draft model's tokenizer differs from the target's: they encode "
                    f"{short_repr(text)} differently, as {len(draft_ids)} and {len(ids)} tokens; "
                    "draft and target must share one tokenizer."
                )
