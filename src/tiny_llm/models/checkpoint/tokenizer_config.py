"""Tokenizer settings outside `tokenizer.json`: special tokens, EOS tokens."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..families.config_fields import text_fields
from .config_checks import check_sizes, check_token_id_field, invalid_field, reject_code
from .safe_io import is_plain_file_name, read_json

TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"

SPECIAL_TOKEN_FIELDS = [
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
]
SPECIAL_TOKEN_LIST_FIELDS = ("additional_special_tokens", "extra_special_tokens")

# transformers and mlx_lm import the modules or classes and open the files named in these fields, so
# the names must not contain a path.
MODULE_FIELDS = ("tool_parser_type", "chat_template_type", "tokenizer_class")
FILE_FIELDS = ("vocab_file", "merges_file", "tokenizer_file")


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """Reads and checks `tokenizer_config.json`; {} if missing."""
    settings = read_optional_json(folder, TOKENIZER_CONFIG)
    where = str(folder / TOKENIZER_CONFIG)
    reject_code(settings, where)
    check_sizes(settings, where)
    for name in MODULE_FIELDS:
        value = settings.get(name)
        if value is not None and not (isinstance(value, str) and value.isidentifier()):
            raise invalid_field(where, name, value, "an identifier")
    for name in FILE_FIELDS:
        value = settings.get(name)
        if value is not None and not (isinstance(value, str) and is_plain_file_name(value)):
            raise invalid_field(where, name, value, "the name of a file in the folder")
    for name in SPECIAL_TOKEN_FIELDS:
        if settings.get(name) is not None and not _is_token(settings[name]):
            raise invalid_field(where, name, settings[name], "a string")
    for name in SPECIAL_TOKEN_LIST_FIELDS:
        if not all(map(_is_token, _listed(settings.get(name)))):
            raise invalid_field(where, name, settings[name], "a list of strings")
    name = "added_tokens_decoder"
    added = settings.get(name) or {}
    if not isinstance(added, dict) or not all(
        key.isascii() and key.isdigit() and len(key) < 10 and _is_token(token)
        for key, token in added.items()
    ):
        raise invalid_field(where, name, added, "an object that maps ids to tokens")
    return settings


def read_eos_token_ids(folder: Path, config: Mapping[str, Any]) -> set[int]:
    """EOS token ids from `generation_config.json`, or else from `config.json`."""
    generation, config = read_optional_json(folder, GENERATION_CONFIG), text_fields(config)
    check_sizes(generation, str(folder / GENERATION_CONFIG))
    check_token_id_field(generation, "eos_token_id", str(folder / GENERATION_CONFIG))
    check_token_id_field(config, "eos_token_id", str(folder / "config.json"))
    ids = generation.get("eos_token_id") or config.get("eos_token_id")
    if ids is None:
        return set()
    return {ids} if isinstance(ids, int) else set(ids)


def special_tokens(settings: Mapping[str, Any]) -> list[str]:
    """Text of every special token in the tokenizer config."""
    tokens = [settings.get(name) for name in SPECIAL_TOKEN_FIELDS]
    for name in SPECIAL_TOKEN_LIST_FIELDS:
        tokens += _listed(settings.get(name))
    return [token_text(token) for token in tokens if token is not None]


def token_text(token: str | Mapping[str, Any]) -> str:
    """A token's text, stored as a string or as the `content` of an object."""
    text: str = token if isinstance(token, str) else token["content"]
    return text


def read_optional_json(folder: Path, name: str) -> dict[str, Any]:
    """Reads an optional JSON object from a checkpoint; {} if missing."""
    return read_json(folder, name) if (folder / name).exists() else {}


def _listed(tokens: Any) -> list[Any]:
    """Tokens of a field that holds a list, an object, a single token or null."""
    if tokens is None:
        return []
    if isinstance(tokens, dict):
        return list(tokens.values())
    return tokens if isinstance(tokens, list) else [tokens]


def _is_token(token: Any) -> bool:
    return isinstance(token, str) or (
        isinstance(token, dict) and isinstance(token.get("content"), str)
    )
