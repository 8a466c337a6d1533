"""Checks on fields of JSON files, common to all families."""

from collections.abc import Mapping
from typing import Any

from ...errors import short_repr
from ..families.config_fields import MAX_INT32, invalid_field
from .safe_io import ModelError

# Names a Python file that replaces the model. `auto_map` also names code, but for `transformers`,
# where it is optional for the families that tiny-llm supports.
CODE_FIELD = "model_file"


def reject_code(fields: Mapping[str, Any], where: str) -> None:
    if fields.get(CODE_FIELD):
        raise ModelError(
            f"{where} has {CODE_FIELD} {short_repr(fields[CODE_FIELD])}, which refers to code; "
            f"tiny-llm never runs a model's code: remove {CODE_FIELD} if the model works without "
            "it."
        )


def check_token_id_field(fields: Mapping[str, Any], name: str, where: str) -> None:
    """Rejects a field that is neither null, a token id nor a list of token ids."""
    value = fields.get(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < MAX_INT32 for i in ids):
        raise ModelError(
            f"{invalid_field(name, value, 'a token id or a list of token ids', where)}."
        )
