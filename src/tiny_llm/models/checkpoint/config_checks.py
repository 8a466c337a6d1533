"""Checks on config fields, common to all families.

Some fields refer to Python code that `transformers` and `mlx_lm` would execute. tiny-llm rejects
these fields before either library opens the folder. An invalid field raises `ModelError`.
"""

from collections.abc import Mapping
from typing import Any

from ...errors import short_repr
from ..families.config_fields import reject_unknown_fields, text_fields
from .quantization import Quantization
from .safe_io import ModelError

# Fields that refer to Python code in the folder (model_file) or in a hub repository.
CODE_FIELDS = ("model_file", "auto_map", "custom_pipelines", "trust_remote_code")

# Fields of unsupported features that would change the computation.
UNSUPPORTED_FIELDS = ("text_config", "vision_config", "audio_config", "quantize_activations")

MAX_INT32 = 2**31 - 1  # the kernels index arrays with int32
MAX_ITEMS = 10_000  # per list or object; Gemma 3 has 6,415 added tokens

QUANTIZATION_FIELDS = ("group_size", "bits", "mode")


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


def check_config(config: Mapping[str, Any], where: str) -> None:
    """Rejects fields that no family supports, and invalid values of common fields."""
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
            expected = f"an integer of at most {MAX_INT32}"
            raise invalid_field(where, short_repr(name), value, expected)
    for name in ("rope_scaling", "rope_parameters", "quantization", "quantization_config"):
        if not isinstance(config.get(name), dict | None):
            raise invalid_field(where, name, config[name], "an object")
    name = "tie_word_embeddings"
    if not isinstance(config.get(name), bool | None):
        raise invalid_field(where, name, config[name], "true or false")
    check_token_id_field(config, "eos_token_id", where)
    _check_quantization(config.get("quantization") or {}, where)


def check_sizes(fields: Mapping[str, Any], where: str) -> None:
    """Rejects lists and objects with more than `MAX_ITEMS` entries."""
    for name, value in fields.items():
        if isinstance(value, list | dict) and len(value) > MAX_ITEMS:
            raise ModelError(
                f"{where} has {short_repr(name)} with {len(value):,} entries, expected at most "
                f"{MAX_ITEMS:,}."
            )


def check_token_id_field(fields: Mapping[str, Any], name: str, where: str) -> None:
    """Rejects a field that is neither a token id, a list of token ids, nor missing."""
    value = fields.get(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < MAX_INT32 for i in ids):
        raise invalid_field(where, name, value, "a token id or a list of token ids")


def _check_quantization(quantization: Mapping[str, Any], where: str) -> None:
    """Checks the default quantization format and the per-layer formats, keyed by layer path."""
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
