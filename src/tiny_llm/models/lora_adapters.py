"""LoRA adapters: low-rank updates to linear layers, selected per request.

An adapter is a folder written by `mlx_lm.lora` or PEFT; only PEFT's configs have `peft_type`.
Unsupported methods (DoRA, full fine-tuning) are rejected, as are unsupported fields that would
change the computation. `attach_adapters` concatenates each layer's matrices over all adapters.

Sources: `mlx_lm/tuner/utils.py`; https://huggingface.co/docs/peft/package_reference/lora
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..errors import short_repr
from .checkpoint.layout import FLOAT_DTYPES, TensorInfo, read_header
from .checkpoint.safe_io import ModelError, model_errors, read_json, resolve_file
from .checkpoint.sharding import BY_COLUMN, RankShard
from .checkpoint.tensor_shapes import matrix_shapes
from .families.config import DecoderConfig
from .families.config_fields import MAX_NUMBER, invalid_field
from .families.decoder import Decoder
from .families.experts import SparseMoE
from .families.gated_delta_net import GatedDeltaNet
from .families.linear import AdapterBatch, Linear, LoraWeights
from .families.tensor_layout import (
    VISION_PREFIXES,
    split_fused_projections,
    split_names,
    text_tensor_name,
)
from .hub import stderr_console
from .memory import total_memory

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

_invalid = partial(invalid_field, where=CONFIG_FILE)


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
        name = "r" if config.is_peft else "rank"
        raise _invalid(name, config.rank, f"at most the model's hidden_size, {model.hidden_size}")
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


UNSUPPORTED_PARTS = {"model.embed_tokens": "the embedding", "lm_head": "the LM head"}


@dataclass(frozen=True)
class LoraMatrices:
    """One layer's low-rank update, (x · aᵀ) · b."""

    a: mx.array  # r×I, for rank r and I inputs of the layer
    b: mx.array  # r×O, for O outputs of the layer; premultiplied by the adapter's scale


# Layer path, for example model.layers.0.mlp.up_proj -> the layer's update.
Adapter = Mapping[str, LoraMatrices]


def read_adapter(
    path: str, model: DecoderConfig, dtype: mx.Dtype, rank_shard: RankShard | None = None
) -> Adapter:
    """Reads an adapter folder written by `mlx_lm.lora` or PEFT; ModelError if unsupported.

    Converts the matrices to `dtype`, and with `rank_shard` returns only that rank's shard of them.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ModelError(
            f"the adapter {short_repr(path)} is not a folder; specify the output folder of "
            "`mlx_lm.lora` or PEFT."
        )
    with model_errors(f"the adapter in {folder} cannot be loaded", RuntimeError):
        is_first = rank_shard is None or rank_shard.rank == 0
        adapter = _read(folder, model, dtype, report=is_first)
    if rank_shard is None:
        return adapter
    return {layer: _shard(layer, full, rank_shard) for layer, full in adapter.items()}


def _read(folder: Path, model: DecoderConfig, dtype: mx.Dtype, report: bool) -> Adapter:
    config = read_adapter_config(folder, model)
    file = resolve_file(folder, config.file)
    stored = read_header(file)
    tensors = {name: each for name, each in stored.items() if not _is_vision(name, config)}
    if len(tensors) < len(stored) and report:
        message = f"{folder}: skipped {len(stored) - len(tensors)} tensors of the vision tower."
        stderr_console().print(message, soft_wrap=True, markup=False)
    size, used, memory = file.stat().st_size, mx.get_active_memory(), total_memory()
    if used + size > memory:  # `used` includes the model and the adapters loaded earlier
        raise ValueError(
            f"it needs {size:,} bytes of memory in addition to {used:,} in use, but this machine "
            f"has {memory:,}"
        )
    names = _check_tensors(tensors, config, model)
    loaded: dict[str, mx.array] = mx.load(str(file))  # type: ignore[assignment]
    matrices: dict[str, LoraMatrices] = {}
    for layer, (name_a, name_b) in names.items():
        a, b = loaded[name_a].astype(mx.float32), loaded[name_b].astype(mx.float32)
        a, b = (a, b.T) if config.is_peft else (a.T, b)
        b = b * config.scale
        a, b = mx.contiguous(a.astype(dtype)), mx.contiguous(b.astype(dtype))
        finite = mx.isfinite(a).all() & mx.isfinite(b).all()
        mx.eval(a, b, finite)
        if not finite.item():
            raise ValueError(f"{name_a} or {name_b} has values that are NaN, infinite or too large")
        matrices.update(_split(layer, a, b, model))
    return matrices


def _is_vision(name: str, config: AdapterConfig) -> bool:
    split = config.split_name(name)
    return split is not None and split[0].startswith(VISION_PREFIXES)


def _check_tensors(
    tensors: Mapping[str, TensorInfo], config: AdapterConfig, model: DecoderConfig
) -> dict[str, tuple[str, str]]:
    """Checks all tensors; returns layer path -> (name of a, name of b)."""
    layers = _layer_shapes(model)
    found: dict[str, dict[str, str]] = {}
    for name, tensor in tensors.items():
        split = config.split_name(name)
        if split is None:
            raise ValueError(f"{short_repr(name)} is not a tensor of a LoRA adapter")
        layer = text_tensor_name(split[0])
        if layer in UNSUPPORTED_PARTS:
            raise ValueError(
                f"{short_repr(name)} adapts {UNSUPPORTED_PARTS[layer]}, which is not supported; "
                "adapt only linear layers of the transformer blocks"
            )
        if layer not in layers:
            raise ValueError(
                f"{short_repr(name)} does not match any layer of this {model.model_type} model"
            )
        if len(layers[layer]) != 2:
            raise ValueError(
                f"{short_repr(name)} adapts experts, which is not supported; exclude them from "
                "keys in lora_parameters"
            )
        index, _, path_in_layer = layer.removeprefix("model.layers.").partition(".")
        is_listed = config.keys is None or not config.keys.isdisjoint((path_in_layer, split[0]))
        if int(index) < config.first_layer or not is_listed:
            raise ValueError(
                f"{short_repr(name)} is not in a layer selected by num_layers and keys in its "
                "config"
            )
        _check_tensor(name, tensor, split[1], layers[layer], config)
        if split[1] in found.setdefault(layer, {}):
            raise ValueError(f"{short_repr(name)} duplicates {short_repr(found[layer][split[1]])}")
        found[layer][split[1]] = name
    for layer, pair in found.items():
        if len(pair) != 2:
            raise ValueError(f"{layer} has only one of lora_a and lora_b")
    if not found:
        raise ValueError("it has no tensors")
    return {layer: (pair["a"], pair["b"]) for layer, pair in found.items()}


def _check_tensor(
    name: str, tensor: TensorInfo, which: str, layer: tuple[int, ...], config: AdapterConfig
) -> None:
    O, I = layer
    expected = (I, config.rank) if which == "a" else (config.rank, O)
    if config.is_peft:
        expected = expected[::-1]
    if tensor.shape != expected:
        raise ValueError(
            f"{short_repr(name)} has shape {'×'.join(map(str, tensor.shape))}, expected "
            f"{'×'.join(map(str, expected))} from the config's rank and the model's layer"
        )
    if tensor.dtype not in FLOAT_DTYPES:
        raise ValueError(
            f"{short_repr(name)} has dtype {tensor.dtype}, expected {' or '.join(FLOAT_DTYPES)}"
        )


def _layer_shapes(model: DecoderConfig) -> dict[str, tuple[int, ...]]:
    shapes = dict(matrix_shapes(model))
    for index in model.delta_net.layers if model.delta_net is not None else ():
        for fused in ("in_proj_qkvz", "in_proj_ba"):
            path = f"model.layers.{index}.linear_attn.{fused}"
            parts = [shapes[part] for part in split_names(path)]
            shapes[path] = (sum(part[0] for part in parts), parts[0][1])
    return shapes


def _split(layer: str, a: mx.array, b: mx.array, model: DecoderConfig) -> Adapter:
    parts = split_names(layer)
    if len(parts) == 1:
        return {layer: LoraMatrices(a, b)}
    assert model.delta_net is not None
    weights = {f"{layer}.weight": b.T}  # O×r, laid out like an O×I weight
    split_fused_projections(weights, model.delta_net)
    return {part: LoraMatrices(a, mx.contiguous(weights[f"{part}.weight"].T)) for part in parts}


def _shard(layer: str, full: LoraMatrices, rank_shard: RankShard) -> LoraMatrices:
    """Slices an update like its weight: `a` by columns, or `b` by rows."""
    weight, a, b = f"{layer}.weight", full.a, full.b
    if layer.rpartition(".")[2] in BY_COLUMN:
        a = rank_shard.slice_tensor(weight, a)
    else:
        b = mx.contiguous(rank_shard.slice_tensor(weight, b.T).T)
    mx.eval(a, b)  # frees the unsliced matrix
    return LoraMatrices(a, b)


def attach_adapters(
    decoder: Decoder, paths: Sequence[str | os.PathLike[str]], rank_shard: RankShard | None = None
) -> None:
    """Reads and attaches adapters; an adapter's id is its index in `paths`.

    Raises:
        ModelError: an adapter is incompatible with this model or does not fit in memory.
    """
    config = decoder.config if rank_shard is None else rank_shard.full_config
    adapters = [read_adapter(os.fspath(path), config, decoder.dtype, rank_shard) for path in paths]
    for index, block in enumerate(decoder.blocks):
        for name, (owner, key) in _linear_layers(block).items():
            matrices = [adapter.get(f"model.layers.{index}.{name}") for adapter in adapters]
            if any(matrices):
                lora = _concatenate(matrices, decoder.adapters)
                owner[key] = replace(owner[key], lora=lora)


def _concatenate(matrices: Sequence[LoraMatrices | None], batch: AdapterBatch) -> LoraWeights:
    """Concatenates one layer's matrices; None marks adapters that skip the layer."""
    offsets = [0]
    for each in matrices:
        offsets.append(offsets[-1] + (0 if each is None else each.a.shape[0]))
    present = [each for each in matrices if each is not None]
    a = mx.concatenate([each.a for each in present])
    b = mx.concatenate([each.b for each in present])
    rank_offsets = mx.array(offsets, dtype=mx.int32)
    mx.eval(a, b, rank_offsets)
    return LoraWeights(a, b, rank_offsets, batch)


def _linear_layers(block: Any) -> dict[str, tuple[dict[str, Any], str]]:
    """Maps a layer's path in the block to (`vars` of its owner, attribute name)."""
    mixer = "linear_attn" if isinstance(block.mixer, GatedDeltaNet) else "self_attn"
    owners = {mixer: block.mixer, "mlp": block.mlp}
    if isinstance(block.mlp, SparseMoE) and block.mlp.shared_expert is not None:
        owners["mlp.shared_expert"] = block.mlp.shared_expert
    return {
        f"{path}.{'out_proj' if name == 'wo' else name}": (vars(owner), name)
        for path, owner in owners.items()
        for name, part in vars(owner).items()
        if isinstance(part, Linear)
    }
