"""Adapter configs: `adapter_config.json` as written by `mlx_lm.lora` or PEFT.

Only PEFT's files have the field `peft_type`. Unsupported methods (DoRA, full fine-tuning) are
rejected, as are unsupported fields that would change the computation.

Sources: `mlx_lm/tuner/utils.py`; https://huggingface.co/docs/peft/package_reference/lora
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import short_repr
from ..checkpoint.safe_io import read_json
from ..families.config import DecoderConfig
from ..families.config_fields import MAX_NUMBER

CONFIG_FILE = "adapter_config.json"
MLX_FILE, PEFT_FILE = "adapters.safetensors", "adapter_model.safetensors"
PEFT_PREFIX = "base_model.model."
LORA_FIELDS = ("rank", "scale", "dropout", "keys")  # fields allowed in `lora_parameters`
# PEFT config fields that change the adapter's layers or computation; rejected if set.
PEFT_UNSUPPORTED = (
    "use_dora",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "fan_in_fan_out",
    "lora_bias",
    "target_parameters",
    "trainable_token_indices",
    "layer_replication",
    "alora_invocation_tokens",
    "corda_config",
    "eva_config",
    "arrow_config",
    "use_qalora",
)
# Values of `init_lora_weights`, or their prefixes, that also change the base model's weights.
CHANGING_INITS = ("pissa", "olora", "corda", "loftq", "lora_ga")


@dataclass(frozen=True)
class AdapterConfig:
    file: str  # name of the tensor file
    rank: int
    scale: float  # factor applied to the update
    first_layer: int = 0  # index of the first adapted decoder layer
    # Allowlist of linear layers, by path within the decoder layer or the model; None allows all.
    keys: frozenset[str] | None = None
    is_peft: bool = False  # whether the tensors use PEFT's names and layout

    def split_name(self, name: str) -> tuple[str, str] | None:
        """Layer path and "a" or "b" from a LoRA tensor's name; None for other names."""
        path, _, last = name.rpartition(".")
        if not self.is_peft:
            return (path, last[-1]) if last in ("lora_a", "lora_b") else None
        path, _, kind = path.rpartition(".")
        if last != "weight" or kind not in ("lora_A", "lora_B"):
            return None
        return path.removeprefix(PEFT_PREFIX), kind[-1].lower()


def read_adapter_config(folder: Path, model: DecoderConfig) -> AdapterConfig:
    """Reads an adapter's config; ValueError if it is missing, invalid or unsupported."""
    if not (folder / CONFIG_FILE).exists():
        raise ValueError(f"it has no {CONFIG_FILE}")
    fields = read_json(folder, CONFIG_FILE)
    config = _peft_config(fields) if "peft_type" in fields else _mlx_config(fields, model)
    if config.rank > model.hidden_size:
        # Each layer has hidden_size inputs or outputs, so a higher rank would only cost memory.
        raise _invalid("rank", config.rank, f"at most the model's hidden_size, {model.hidden_size}")
    return config


def _mlx_config(fields: Mapping[str, Any], model: DecoderConfig) -> AdapterConfig:
    method = fields.get("fine_tune_type", "lora")
    if method != "lora":
        hint = "'lora'; fuse other adapters into the model with `mlx_lm.fuse`"
        raise _invalid("fine_tune_type", method, hint)
    lora = fields.get("lora_parameters")
    if not isinstance(lora, Mapping):
        raise _invalid("lora_parameters", lora, "an object")
    for name in lora:
        if name not in LORA_FIELDS:
            raise ValueError(
                f"{CONFIG_FILE} has unknown field {short_repr(name)} in lora_parameters, expected "
                f"{', '.join(LORA_FIELDS)}"
            )
    layers, num_layers = fields.get("num_layers"), model.num_hidden_layers
    if not isinstance(layers, int) or isinstance(layers, bool):
        raise _invalid("num_layers", layers, "an integer")
    # Like mlx_lm, adapts the last `layers` layers, or all layers if `layers` is not positive.
    first_layer = max(0, num_layers - layers) if layers > 0 else 0
    keys = lora.get("keys")
    if keys is not None:
        if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
            raise _invalid("keys", keys, "a list of strings")
        keys = frozenset(keys)
    rank, scale = _rank(lora, "rank"), _number(lora, "scale")
    return AdapterConfig(MLX_FILE, rank, scale, first_layer, keys)


def _peft_config(fields: Mapping[str, Any]) -> AdapterConfig:
    if fields["peft_type"] != "LORA":
        raise _invalid("peft_type", fields["peft_type"], "'LORA'")
    for name in PEFT_UNSUPPORTED:
        if fields.get(name):
            raise ValueError(
                f"{CONFIG_FILE} has {name} {short_repr(fields[name])}, which is not supported"
            )
    if fields.get("bias", "none") != "none":
        raise _invalid("bias", fields["bias"], "'none'")
    init = fields.get("init_lora_weights")
    if isinstance(init, str) and init.lower().startswith(CHANGING_INITS):
        raise ValueError(
            f"{CONFIG_FILE} has init_lora_weights {short_repr(init)}, which changes the base "
            "model's weights, too; save the adapter with PEFT's "
            "path_initial_model_for_weight_conversion, or merge it into the model"
        )
    rank = _rank(fields, "r")
    divisor = math.sqrt(rank) if fields.get("use_rslora") else rank
    scale = _number(fields, "lora_alpha") / divisor
    return AdapterConfig(PEFT_FILE, rank, scale, is_peft=True)


def _rank(fields: Mapping[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _invalid(name, value, "a positive integer")
    return value


def _number(fields: Mapping[str, Any], name: str) -> float:
    value = fields.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is None or not is_number or not abs(value) < MAX_NUMBER:
        raise _invalid(name, value, "a number")
    return float(value)


def _invalid(name: str, value: Any, expected: str) -> ValueError:
    return ValueError(f"{CONFIG_FILE} has {name} {short_repr(value)}, expected {expected}")
