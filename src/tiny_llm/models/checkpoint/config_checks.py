"""Checks on config fields, common to all families.

Some fields refer to Python code that `transformers` and `mlx_lm` would execute. tiny-llm rejects
these fields before either library opens the folder.
"""

from collections.abc import Mapping
from typing import Any

from ...errors import short_repr
from ..families.config_fields import reject_unknown_fields, text_fields
from .quantization import Quantization
from .safe_io import ModelError

# Fields that refer to Python code in the folder (model_file) or in a hub repository.
CODE_FIELDS = ("model_file", "auto_map", "custom_pipelines", "trust_remote_code")

# Unsupported features that change the computation.
UNSUPPORTED_FIELDS = ("text_config", "vision_config", "audio_config", "quantize_activations")

MAX_INT32 = 2**31 - 1  # the kernels' index type
MAX_ITEMS = 10_000  # per list or object; Gemma 3 has 6,415 added tokens

QUANTIZATION_FIELDS = ("group_size", "bits", "mode")

EXPECTED_TOKEN_IDS = "a token id or a list of token ids"


def reject_code(fields: Mapping[str, Any], where: str) -> None:
    """Rejects fields that refer to executable code.

    Raises:
        ModelError: a field refers to code.
    """
    for name in CODE_FIELDS:
        if fields.get(name):
            raise ModelError(
                f"{where} has {name} {short_repr(fields[name])}, which refers to code; tiny-llm "
                f"never runs a model's code: remove {name} if the model works without it."
            )


def check_config(config: Mapping[str, Any], where: str) -> None:
    """Rejects fields that no family supports, and invalid values of common fields.

    Raises:
        ModelError: the first invalid field.
    """
    reject_code(config, where)
    try:
        config = text_fields(config)
    except ValueError as error:
        raise ModelError(f"{where} is invalid: {error}.") from error
    reject_code(config, where)
    check_sizes(config, where)
    for name in UNSUPPORTED_FIELDS:
        if config.get(name):
            raise ModelError(
                f"{where} has {name} {short_repr(config[name])}, which tiny-llm does not "
                "support; use a text-only model without it."
            )
    for name, value in config.items():
        is_size = isinstance(value, int) and name != "rope_theta"
        if is_size and not -MAX_INT32 <= value <= MAX_INT32:
            raise ModelError(
                f"{where} has {short_repr(name)} {short_repr(value)}, expected an integer "
                f"of at most {MAX_INT32}."
            )
    for name in ("rope_scaling", "rope_parameters", "quantization", "quantization_config"):
        if not isinstance(config.get(name), dict | None):
            raise ModelError(f"{where} has {name} {short_repr(config[name])}, expected an object.")
    if not isinstance(config.get("tie_word_embeddings"), bool | None):
        value = short_repr(config["tie_word_embeddings"])
        raise ModelError(f"{where} has tie_word_embeddings {value}, expected true or false.")
    check_token_id_field(config, "eos_token_id", where)
    _check_quantization(config.get("quantization") or {}, where)


def check_sizes(fields: Mapping[str, Any], where: str) -> None:
    """Rejects lists and objects with more than `MAX_ITEMS` entries.

    Raises:
        ModelError: names the first list or object that is too long.
    """
    for name, value in fields.items():
        if isinstance(value, list | dict) and len(value) > MAX_ITEMS:
            raise ModelError(
                f"{where} has {short_repr(name)} with {len(value):,} entries, expected at most "
                f"{MAX_ITEMS:,}."
            )


def check_token_id_field(fields: Mapping[str, Any], name: str, where: str) -> None:
    """Rejects a field that is neither a token id, a list of token ids, nor missing.

    Raises:
        ModelError: the value is invalid.
    """
    value = fields.get(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < MAX_INT32 for i in ids):
        raise ModelError(f"{where} has {name} {short_repr(value)}, expected {EXPECTED_TOKEN_IDS}.")


def _check_quantization(quantization: Mapping[str, Any], where: str) -> None:
    """Checks the default quantization format and the per-layer formats, keyed by path."""
    overrides = {
        name: value for name, value in quantization.items() if isinstance(value, dict | bool)
    }
    known = {*QUANTIZATION_FIELDS, *overrides}
    for path, fields in {"": quantization, **overrides}.items():
        if isinstance(fields, bool):
            continue
        try:
            Quantization.from_config(fields)
            reject_unknown_fields(fields, known, "the quantization of config.json")
        except ValueError as error:
            layer = f" of {short_repr(path)}" if path else ""
            raise ModelError(f"{where}: invalid quantization{layer}: {error}.") from error
