"""What a checkpoint's JSON files may not say, whatever the family of the model.

`transformers` and `mlx_lm` run Python that some of these fields name. tiny-llm runs none, and hands
no folder with such fields to them.
"""

from collections.abc import Mapping
from typing import Any

from ...errors import short_repr
from ..families.config_fields import reject_unknown_fields
from .quantization import Quantization
from .safe_io import ModelError

# Each names Python code: in the folder (model_file), or in a repository of the hub.
CODE_FIELDS = ("model_file", "auto_map", "custom_pipelines", "trust_remote_code")

# Each makes the model another than the one that the other fields describe.
UNSUPPORTED_FIELDS = ("text_config", "vision_config", "audio_config", "quantize_activations")

MAX_INT32 = 2**31 - 1  # what kernels count with

QUANTIZATION_FIELDS = ("group_size", "bits", "mode")

EXPECTED_TOKEN_IDS = "a token id, or a list of them"


def reject_code(fields: Mapping[str, Any], where: str) -> None:
    """Refuses fields that name code to be run.

    Args:
        fields: a JSON object of the checkpoint.
        where: its file, for the sentence.

    Raises:
        ModelError: there is one.
    """
    for name in CODE_FIELDS:
        if fields.get(name):
            raise ModelError(
                f"{where} has {name} {short_repr(fields[name])}, which names code; tiny-llm runs "
                "no "
                f"code of a model's: remove {name} if the model works without it."
            )


def check_config(config: Mapping[str, Any], where: str) -> None:
    """Refuses what no family has, and fields that are not what they must be in every family.

    Args:
        config: a parsed `config.json`.
        where: the file, for the sentence.

    Raises:
        ModelError: the first such field.
    """
    reject_code(config, where)
    for name in UNSUPPORTED_FIELDS:
        if config.get(name):
            raise ModelError(
                f"{where} has {name} {short_repr(config[name])}, which tiny-llm does not "
                "serve; give a model of text without it."
            )
    for name, value in config.items():
        is_size = isinstance(value, int) and name != "rope_theta"
        if is_size and not -MAX_INT32 <= value <= MAX_INT32:
            raise ModelError(
                f"{where} has {short_repr(name)} {short_repr(value)}; numbers may be at most "
                f"{MAX_INT32}."
            )
    for name in ("rope_scaling", "rope_parameters", "quantization", "quantization_config"):
        if not isinstance(config.get(name), dict | None):
            raise ModelError(f"{where} has {name} {short_repr(config[name])}, expected an object.")
    if not isinstance(config.get("tie_word_embeddings"), bool | None):
        found = short_repr(config["tie_word_embeddings"])
        raise ModelError(f"{where} has tie_word_embeddings {found}, expected true or false.")
    check_token_id_field(config, "eos_token_id", where)
    _check_quantization(config.get("quantization") or {}, where)


def check_token_id_field(fields: Mapping[str, Any], name: str, where: str) -> None:
    """Refuses a field that is neither a token id, nor several, nor missing.

    Raises:
        ModelError: it is something else.
    """
    value = fields.get(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < MAX_INT32 for i in ids):
        raise ModelError(f"{where} has {name} {short_repr(value)}, expected {EXPECTED_TOKEN_IDS}.")


def _check_quantization(quantization: Mapping[str, Any], where: str) -> None:
    """The format of all layers, and what is said of single ones, by their paths."""
    own = {name: value for name, value in quantization.items() if isinstance(value, dict | bool)}
    for path, fields in {"": quantization, **own}.items():
        if isinstance(fields, bool):
            continue
        try:
            Quantization.from_config(fields)
            reject_unknown_fields(
                fields, {*QUANTIZATION_FIELDS, *own}, "the quantization of config.json"
            )
        except ValueError as error:
            of = f" for {short_repr(path)}" if path else ""
            raise ModelError(f"{where} cannot be used{of}: {error}.") from error
