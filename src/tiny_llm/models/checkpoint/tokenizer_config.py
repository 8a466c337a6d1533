"""Tokenizer settings outside `tokenizer.json`: special tokens, EOS tokens."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..families.config_fields import MAX_INT32, invalid_field, text_fields
from .safe_io import ModelError, read_optional_json

TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"

SPECIAL_TOKEN_FIELDS = [
    f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
]
SPECIAL_TOKEN_LIST_FIELDS = ("additional_special_tokens", "extra_special_tokens")


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """Reads `tokenizer_config.json`; {} if missing.

    Older checkpoints list their tokens in `special_tokens_map.json` and `added_tokens.json`
    instead of `added_tokens_decoder`.
    """
    settings, where = read_optional_json(folder, TOKENIZER_CONFIG), str(folder / TOKENIZER_CONFIG)
    if "added_tokens_decoder" not in settings:
        settings |= read_optional_json(folder, "special_tokens_map.json")
        added = read_optional_json(folder, "added_tokens.json")
        settings["added_tokens_decoder"] = {str(i): {"content": text} for text, i in added.items()}
    for name in SPECIAL_TOKEN_FIELDS:
        if settings.get(name) is not None and not _is_token(settings[name]):
            raise ModelError(f"{invalid_field(name, settings[name], 'a string', where)}.")
    for name in SPECIAL_TOKEN_LIST_FIELDS:
        if not all(map(_is_token, _listed(settings.get(name)))):
            raise ModelError(f"{invalid_field(name, settings[name], 'a list of strings', where)}.")
    return settings


def listed_tokens(settings: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Tokens of `added_tokens_decoder`, sorted by id."""
    listed = settings.get("added_tokens_decoder") or {}
    return {int(i): listed[i] for i in sorted(listed, key=int)}


def read_eos_token_ids(folder: Path, config: Mapping[str, Any]) -> set[int]:
    """EOS token ids from `generation_config.json`, or else from `config.json`."""
    generation, config = read_optional_json(folder, GENERATION_CONFIG), text_fields(config)
    _check_token_ids(generation, "eos_token_id", str(folder / GENERATION_CONFIG))
    _check_token_ids(config, "eos_token_id", str(folder / "config.json"))
    ids = generation.get("eos_token_id") or config.get("eos_token_id")
    if ids is None:
        return set()
    return {ids} if isinstance(ids, int) else set(ids)


def _check_token_ids(fields: Mapping[str, Any], name: str, where: str) -> None:
    """Rejects a field that is neither null, a token id nor a list of token ids."""
    value = fields.get(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < MAX_INT32 for i in ids):
        raise ModelError(
            f"{invalid_field(name, value, 'a token id or a list of token ids', where)}."
        )


def special_tokens(settings: Mapping[str, Any]) -> list[Any]:
    tokens = [settings.get(name) for name in SPECIAL_TOKEN_FIELDS]
    for name in SPECIAL_TOKEN_LIST_FIELDS:
        tokens += _listed(settings.get(name))
    return [token for token in tokens if token is not None]


def token_text(token: str | Mapping[str, Any]) -> str:
    """A token's text, stored as a string or as the `content` of an object."""
    text: str = token if isinstance(token, str) else token["content"]
    return text


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
