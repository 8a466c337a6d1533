"""Tokenizer and streaming detokenizer, without `transformers`.

Uses the `tokenizers` library directly, because importing `transformers` takes seconds. Token ids,
texts and EOS tokens are identical to those of `mlx_lm`'s tokenizer for the same folder. The
latter is loaded for features that are not implemented here.

A byte-level token may end in the middle of a UTF-8 sequence: `é` can be two tokens, an emoji four.
The detokenizer holds back incomplete sequences, so emitted text never changes.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from ..checkpoint.tokenizer_config import (
    SPECIAL_TOKEN_FIELDS,
    read_eos_token_ids,
    read_tokenizer_config,
    special_tokens,
    token_text,
)
from .chat_template import RENDERER, choose_template, find_chat_template
from .hf_fallback import load_mlx_lm_tokenizer
from .low_memory_load import load_tokenizer_json
from .sandboxed_encode import SandboxedEncoder, sandboxed_encoder
from .tokenizer_json import TOKENIZER_FILE, raise_library_error, read_tokenizer_json

# Disables the library's threads, which do not speed up batches of one and cause warnings in forks.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

REPLACEMENT_CHARACTER = "\ufffd"  # replaces invalid UTF-8

# `transformers` classes that use tokenizer.json unchanged.
SUPPORTED_CLASSES = {
    "PreTrainedTokenizerFast",
    "Qwen2Tokenizer",
    "Qwen2TokenizerFast",
    "TokenizersBackend",
}
THINK_TAGS = {"<think>", "</think>"}

# Settings that require `transformers` if enabled; Qwen3 enables none.
TRANSFORMERS_ONLY_FIELDS = (
    "add_prefix_space",
    "chat_template_type",
    "clean_up_tokenization_spaces",
    "split_special_tokens",
)

# `apply_chat_template` arguments that only `transformers` implements.
TRANSFORMERS_ONLY_ARGUMENTS = {
    *("chat_template", "continue_final_message", "max_length", "padding"),
    *("return_assistant_tokens_mask", "return_dict", "return_tensors", "sanitize_control_tokens"),
    *("tokenizer_kwargs", "truncation"),
}


class StreamingDetokenizer:
    """Detokenizes one output incrementally.

    As in `mlx_lm`, a leading space is stripped, and a token that is a single space is held back
    until the next token.

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
        is_complete = not self._pending.decode(errors="replace").endswith(REPLACEMENT_CHARACTER)
        if is_complete and new != b" ":
            self.finalize()

    def finalize(self) -> None:
        """Flushes the pending bytes; an incomplete character becomes U+FFFD."""
        text = self._pending.decode(errors="replace")
        self.text += text if self.text else text.removeprefix(" ")
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


class _ByteLevelMap(dict[int, str]):
    """Maps a code point to UTF-8 bytes by default, each as a Latin-1 character."""

    def __missing__(self, code_point: int) -> str:
        return chr(code_point).encode().decode("latin-1")


_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (byte for byte in range(256) if byte not in _PRINTABLE)
_BYTE_LEVEL = _ByteLevelMap({byte: chr(byte) for byte in _PRINTABLE})
_BYTE_LEVEL.update({0x100 + index: chr(byte) for index, byte in enumerate(_OTHERS)})


class Tokenizer:
    """Drop-in replacement for the tokenizer from `mlx_lm.load`.

    Args:
        config: parsed `tokenizer_config.json`.
        encoder: sandboxed encoder; None if all components of `tokenizer.json` are safe.

    Attributes:
        chat_template: see `find_chat_template`; None if missing.
        has_thinking: whether the vocabulary has the tokens `THINK_TAGS`.
    """

    def __init__(
        self,
        folder: Path,
        tokenizer: tokenizers.Tokenizer,
        config: Mapping[str, Any],
        eos_token_ids: set[int],
        encoder: SandboxedEncoder | None = None,
    ):
        self.eos_token_ids = eos_token_ids
        self.chat_template = find_chat_template(folder, config)
        self.has_thinking = all(tokenizer.token_to_id(token) is not None for token in THINK_TAGS)
        self._folder = folder
        self._tokenizer = tokenizer
        self._named_tokens = {
            name: token_text(config[name])
            for name in SPECIAL_TOKEN_FIELDS
            if config.get(name) is not None
        }
        self._added_tokens = {
            token_id: token.content.encode()
            for token_id, token in tokenizer.get_added_tokens_decoder().items()
        }
        self._encoder = encoder

    @property
    def has_chat_template(self) -> bool:
        """Whether the checkpoint has a chat template."""
        return self.chat_template is not None

    @property
    def backend_tokenizer(self) -> tokenizers.Tokenizer:
        """The underlying `tokenizers.Tokenizer`, named as in `transformers`."""
        return self._tokenizer

    @property
    def detokenizer(self) -> StreamingDetokenizer:
        """Creates a streaming detokenizer for one output."""
        return StreamingDetokenizer(self.token_bytes)

    def token_bytes(self, token: int) -> bytes:
        """Bytes of a token id; empty for padding ids beyond the vocabulary."""
        if token in self._added_tokens:
            return self._added_tokens[token]
        return decode_byte_level(self._tokenizer.id_to_token(token) or "")

    def encode(self, text: str, add_special_tokens: bool = True, **others: Any) -> list[int]:
        """Encodes a text, in which special tokens are recognized.

        Args:
            add_special_tokens: whether to apply `tokenizer.json`'s post-processor.
            others: other arguments of `transformers`' `encode`, which require the fallback.

        Raises:
            UserError: the library fails, or a tokenizer with unsafe components exceeds its limits
                (`sandboxed_encode.py`).
        """
        options = {"add_special_tokens": add_special_tokens}
        if others:
            return self._mlx_lm.encode(text, **options, **others)
        if self._encoder is not None:
            return self._encoder.encode(text, add_special_tokens)
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
            return self._mlx_lm.decode(ids, skip_special_tokens=skip_special_tokens, **others)
        ids = [ids] if isinstance(ids, int) else [int(token) for token in ids]
        (text,) = self._tokenizer.decode_batch([ids], skip_special_tokens=skip_special_tokens)
        return text

    def get_vocab(self) -> dict[str, int]:
        """Vocabulary: token (spelled as in `tokenizer.json`) -> id."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    def add_eos_token(self, token: str | int) -> None:
        """Adds an EOS token, given by text or id."""
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
        """Renders a conversation with the chat template in a sandboxed process.

        Args:
            conversation: messages {"role": …, "content": …}, plus other keys the template reads.
            tools: JSON schemas of the available tools.
            variables: template variables such as `add_generation_prompt` and `enable_thinking`
                (default: `has_thinking`); other arguments as in `transformers`.

        Returns:
            Token ids, or the text if `tokenize` is False.

        Raises:
            ValueError: the template rejects the conversation or exceeds its limits, or there is no
                chat template or no message.
        """
        variables["tools"] = tools
        if not self._can_render(conversation, variables):
            return self._mlx_lm.apply_chat_template(conversation, tokenize=tokenize, **variables)
        assert self.chat_template is not None
        variables = {
            **self._named_tokens,
            "documents": None,
            "add_generation_prompt": False,
            "enable_thinking": self.has_thinking,
            **variables,
        }
        template = self.chat_template
        if not isinstance(template, str):
            template = choose_template(template, has_tools=tools is not None)
        request = {"template": template, "messages": list(conversation), "variables": variables}
        text = RENDERER.request(request)["text"]
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'")
        return getattr(self._mlx_lm, name)

    @cached_property
    def _mlx_lm(self) -> Any:
        """The folder's tokenizer as loaded by `mlx_lm`, on first use."""
        return load_mlx_lm_tokenizer(self._folder, self.eos_token_ids)

    def _can_render(self, messages: Any, variables: Mapping[str, Any]) -> bool:
        """Whether a conversation can be rendered without `transformers`."""
        return (
            self.chat_template is not None
            and not TRANSFORMERS_ONLY_ARGUMENTS & set(variables)
            and not re.search(r"\{%-?\s*generation\b", str(self.chat_template))
            and isinstance(messages, Sequence)
            and bool(messages)
            and all(
                isinstance(m, dict) and not {"thinking", "reasoning"} & set(m) for m in messages
            )
            and all(isinstance(tool, dict) for tool in variables["tools"] or ())
        )


def open_tokenizer(folder: Path, config: Mapping[str, Any]) -> Any:
    """Loads a checkpoint's tokenizer: a `Tokenizer`, or else `mlx_lm`'s.

    Raises:
        ValueError: a file is malformed; the message names it.
    """
    eos_token_ids = read_eos_token_ids(folder, config)
    settings = read_tokenizer_config(folder)
    if not (folder / TOKENIZER_FILE).exists():
        return load_mlx_lm_tokenizer(folder, eos_token_ids)
    content = read_tokenizer_json(folder)
    encoder = sandboxed_encoder(folder, content)
    try:
        tokenizer = load_tokenizer_json(folder / TOKENIZER_FILE, content)
    except BaseException as error:
        raise_library_error(f"{TOKENIZER_FILE} cannot be read", error)
    if not _is_supported(folder, tokenizer, settings):
        return load_mlx_lm_tokenizer(folder, eos_token_ids)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if settings["eos_token"] is not None:
        eos_token_id = tokenizer.token_to_id(token_text(settings["eos_token"]))
        assert eos_token_id is not None  # checked by `_is_supported`
        eos_token_ids.add(eos_token_id)
    return Tokenizer(folder, tokenizer, settings, eos_token_ids, encoder)


def _is_supported(folder: Path, tokenizer: tokenizers.Tokenizer, settings: dict[str, Any]) -> bool:
    """Whether `transformers` would use `tokenizer.json` unchanged.

    `transformers` adds tokens that are listed only in other files, and an EOS token if none is set.
    """
    ids = {token.content: i for i, token in tokenizer.get_added_tokens_decoder().items()}
    listed = settings.get("added_tokens_decoder")
    return (
        settings.get("tokenizer_class") in SUPPORTED_CLASSES
        and isinstance(tokenizer.decoder, tokenizers.decoders.ByteLevel)
        and "eos_token" in settings
        and not any(settings.get(name) for name in TRANSFORMERS_ONLY_FIELDS)
        and all(token in ids for token in special_tokens(settings))
        and all(ids.get(token_text(token)) == int(i) for i, token in (listed or {}).items())
        and (listed is not None or not (folder / "special_tokens_map.json").exists())
    )
