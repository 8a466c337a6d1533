"""What a checkpoint says of its tokenizer outside `tokenizer.json`: special tokens, end tokens."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import shortened
from .config_checks import check_token_field, refuse_code
from .folder import ModelError, is_plain_name, read_json

SETTINGS = "tokenizer_config.json"
GENERATION = "generation_config.json"

NAMED_TOKENS = [f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
LISTED_TOKENS = ("additional_special_tokens", "extra_special_tokens")

# What transformers and mlx_lm import, and open, by these names.
MODULES = ("tool_parser_type", "chat_template_type", "tokenizer_class")
FILES = ("vocab_file", "merges_file", "tokenizer_file")


def read_settings(folder: Path) -> dict[str, Any]:
    """A checkpoint's `tokenizer_config.json`, checked; {} if it has none.

    Raises:
        ModelError: it names code, or a field is of a wrong kind.
    """
    settings = read_if_there(folder, SETTINGS)
    where = str(folder / SETTINGS)
    refuse_code(settings, where)
    for name in MODULES:
        value = settings.get(name)
        if value is not None and not (isinstance(value, str) and value.isidentifier()):
            raise _refusal(where, name, value, "a plain name")
    for name in FILES:
        value = settings.get(name)
        if value is not None and not (isinstance(value, str) and is_plain_name(value)):
            raise _refusal(where, name, value, "the name of a file in the folder")
    for name in NAMED_TOKENS:
        if settings.get(name) is not None and not _is_token(settings[name]):
            raise _refusal(where, name, settings[name], "a text")
    for name in LISTED_TOKENS:
        if not all(map(_is_token, _listed(settings.get(name)))):
            raise _refusal(where, name, settings[name], "a list of texts")
    name = "added_tokens_decoder"
    added = settings.get(name) or {}
    if not isinstance(added, dict) or not all(
        key.isascii() and key.isdigit() and len(key) < 10 and _is_token(token)
        for key, token in added.items()
    ):
        raise _refusal(where, name, added, "tokens by their ids")
    return settings


def find_eos_token_ids(folder: Path, config: Mapping[str, Any]) -> set[int]:
    """The end tokens: those of `generation_config.json`, else of `config.json`.

    Raises:
        ModelError: they are no token ids.
    """
    generation = read_if_there(folder, GENERATION)
    check_token_field(generation, "eos_token_id", str(folder / GENERATION))
    found = generation.get("eos_token_id") or config.get("eos_token_id")
    if found is None:
        return set()
    return {found} if isinstance(found, int) else set(found)


def special_tokens(settings: Mapping[str, Any]) -> list[str]:
    """The texts of all special tokens that the settings name."""
    tokens = [settings.get(name) for name in NAMED_TOKENS]
    for name in LISTED_TOKENS:
        tokens += _listed(settings.get(name))
    return [content(token) for token in tokens if token is not None]


def content(token: str | Mapping[str, Any]) -> str:
    """A token's text, which files store alone or with the token's properties."""
    text: str = token if isinstance(token, str) else token["content"]
    return text


def read_if_there(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object that a checkpoint may have; {} if it has none."""
    return read_json(folder, name) if (folder / name).exists() else {}


def _listed(tokens: Any) -> list[Any]:
    """The tokens of a list, or of an object that names each; a wrong one, if it is neither."""
    if tokens is None:
        return []
    if isinstance(tokens, dict):
        return list(tokens.values())
    return tokens if isinstance(tokens, list) else [tokens]


def _is_token(token: Any) -> bool:
    return isinstance(token, str) or (
        isinstance(token, dict) and isinstance(token.get("content"), str)
    )


def _refusal(where: str, name: str, value: Any, expected: str) -> ModelError:
    return ModelError(f"{where} has {name} {shortened(value)}, expected {expected}.")
