"""LoRA adapter loading, from a folder."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from ...errors import short_repr
from ..checkpoint.safe_io import ModelError, model_errors, resolve_file
from ..checkpoint.safetensors_header import FLOAT_DTYPES, TensorInfo, read_header
from ..checkpoint.sharding import BY_COLUMN, RankShard
from ..checkpoint.tensor_shapes import matrix_shapes
from ..families.config import DecoderConfig
from ..families.tensor_layout import (
    VISION_PREFIXES,
    split_fused_projections,
    split_names,
    text_tensor_name,
)
from ..hub import stderr_console
from ..memory import total_memory
from .adapter_config import AdapterConfig, read_adapter_config

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
