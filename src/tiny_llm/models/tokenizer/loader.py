"""Tokenizer loading: `tokenizer.json`, and what other files add to it."""

import logging
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import tokenizers

from ..checkpoint.safe_io import LFS_POINTER, reject_lfs_pointer, resolve_file
from ..checkpoint.tokenizer_config import (
    TOKENIZER_CONFIG,
    listed_tokens,
    read_eos_token_ids,
    read_tokenizer_config,
    special_tokens,
    token_text,
)
from ..families.config_fields import text_fields
from .tokenizer import Tokenizer, raise_library_error

log = logging.getLogger("tiny_llm.models")

TOKENIZER_FILE = "tokenizer.json"

# `transformers` classes that convert vocab.json and merges.txt to a tokenizer.
CONVERTIBLE_CLASSES = ("Qwen2Tokenizer", "GPT2Tokenizer")

ADDED_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

# Settings of tokenizer_config.json that have no effect, even if they are set.
IGNORED_SETTINGS = ("chat_template_type", "clean_up_tokenization_spaces", "split_special_tokens")


def open_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Loads a checkpoint's tokenizer.

    Raises:
        ValueError: a file is malformed or belongs to another model; the message names it.
    """
    eos_token_ids = read_eos_token_ids(folder, config)
    settings = read_tokenizer_config(folder)
    tokenizer = _read_tokenizer(folder, settings)
    _add_listed_tokens(tokenizer, settings, text_fields(config).get("vocab_size"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ignored = ", ".join(_ignored_settings(tokenizer, settings))
    if ignored:
        _warn(f"{folder / TOKENIZER_CONFIG}: ignored {ignored}.")
    if settings.get("eos_token") is not None:
        eos_token_id = tokenizer.token_to_id(token_text(settings["eos_token"]))
        if eos_token_id is not None:
            eos_token_ids.add(eos_token_id)
    return Tokenizer(folder, tokenizer, settings, eos_token_ids)


def _read_tokenizer(folder: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    if not (folder / TOKENIZER_FILE).exists():
        return _convert_vocabulary(folder, settings)
    file = resolve_file(folder, TOKENIZER_FILE)
    with file.open("rb") as stream:
        reject_lfs_pointer(file, stream.read(len(LFS_POINTER)))
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except BaseException as error:
        raise_library_error(f"{file} cannot be read", error)


def _convert_vocabulary(folder: Path, settings: Mapping[str, Any]) -> tokenizers.Tokenizer:
    name = str(settings.get("tokenizer_class")).removesuffix("Fast")
    if name not in CONVERTIBLE_CLASSES:
        raise ValueError(
            f"it has no {TOKENIZER_FILE}, which its tokenizer_class, {name}, requires; copy it "
            "from the hub"
        )
    import transformers  # takes seconds

    vocab, merges = (str(resolve_file(folder, file)) for file in ("vocab.json", "merges.txt"))
    converted = getattr(transformers, name)(vocab=vocab, merges=merges).backend_tokenizer
    assert isinstance(converted, tokenizers.Tokenizer)
    return converted


def _add_listed_tokens(
    tokenizer: tokenizers.Tokenizer, settings: Mapping[str, Any], vocab_size: int | None
) -> None:
    """Adds tokens that only the tokenizer config lists, as `transformers` does.

    Tokens without a row in the embedding, which has `vocab_size` rows, remain text.
    """
    listed, special = listed_tokens(settings), special_tokens(settings)
    names = {token_text(token) for token in special}
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for token in [*listed.values(), *special]:
        text = token_text(token)
        is_new = text not in known and tokenizer.token_to_id(text) is None
        is_full = vocab_size is not None and tokenizer.get_vocab_size() >= vocab_size
        if text in known or (is_new and is_full):
            continue
        given = {} if isinstance(token, str) else token
        flags = {name: given[name] for name in ADDED_TOKEN_FLAGS if name in given}
        flags["special"] = text in names or flags.get("special", False)
        tokenizer.add_tokens([tokenizers.AddedToken(text, **flags)])
        known.add(text)
    for token_id, token in listed.items():
        found = tokenizer.token_to_id(token_text(token))
        if found not in (None, token_id):
            raise ValueError(
                f"{token_text(token)} has id {token_id} in {TOKENIZER_CONFIG} and {found} in "
                f"{TOKENIZER_FILE}; copy both files from the same model"
            )


@cache
def _warn(message: str) -> None:
    """Logs a warning once, because a server opens a model's tokenizer twice."""
    log.warning("%s", message)


def _ignored_settings(
    tokenizer: tokenizers.Tokenizer, settings: Mapping[str, Any]
) -> Iterator[str]:
    """Yields settings that are not supported or contradict `tokenizer.json`."""
    for name in IGNORED_SETTINGS:
        if settings.get(name):
            yield name
    text, spaced = (tokenizer.encode(each, add_special_tokens=False).ids for each in ("a", " a"))
    full = tokenizer.encode("a").ids
    actual = {
        "add_bos_token": full[:1] != text[:1],
        "add_eos_token": full[-1:] != text[-1:],
        "add_prefix_space": text == spaced,
    }
    for name, value in actual.items():
        if settings.get(name) not in (None, value):
            yield f"{name} (tokenizer.json differs)"
