"""Checks on fields of JSON files, common to all families.

Fields that refer to Python code, which `transformers` and `mlx_lm` would execute, are rejected
before either library opens the folder. An invalid field raises `ModelError`.
"""

from collections.abc import Mapping
from typing import Any

from ...errors import short_repr
from ..families.config_fields import MAX_INT32
from .safe_io import ModelError

# Fields that refer to Python code in the folder or in a hub repository, or allow its execution.
CODE_FIELDS = ("model_file", "auto_map", "custom_pipelines", "trust_remote_code")

MAX_ITEMS = 10_000  # per list or object; Gemma 3 has 6,415 added tokens


def invalid_field(where: str, name: str, value: Any, expected: str) -> ModelError:
    """Error for an invalid value of a field in the file `where`."""
    return ModelError(f"{where} has {name} {short_repr(value)}, expected {expected}.")


def reject_code(fields: Mapping[str, Any], where: str) -> None:
    """Rejects fields that refer to executable code."""
    for name in CODE_FIELDS:
        if fields.get(name):
            raise ModelError(
                f"{where} has {name} {short_repr(fields[name])}, which refers to code; tiny-llm "
                f"never runs a model's code: remove {name} if the model works without it."
            )


def check_sizes(fields: Mapping[str, Any], where: str) -> None:
    """Rejects lists and objects with more than `MAX_ITEMS` entries."""
    for name, value in fields.items():
        if isinstance(value, list | dict) and len(value) > MAX_ITEMS:
            raise ModelError(
                f"{where} has {short_repr(name)} with {len(value):,} entries, expected at most "
                f"{MAX_ITEMS:,}."
            )


def check_token_id_field(fields: Mapping[str, Any], name: str, where: str) -> None:
    """Rejects a field that is neither null, a token id nor a list of token ids."""
    value = fields.get(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < MAX_INT32 for i in ids):
        raise invalid_field(where, name, value, "a token id or a list of token ids")
