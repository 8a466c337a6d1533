"""GGUF weights as a tree of layers, repacked while they are evaluated.

Each array starts as a lazy placeholder, from which sizes and formats are checked. Evaluation
replaces it by the result of its reader. Tensors are converted to the layout of MLX's models:

    llama: rows of q_proj, k_proj    pairs of RoPE are adjacent in GGUF, half a head apart in MLX
    Gated DeltaNet: value heads      GGUF interleaves those of different key heads
    ssm_a                            −exp(A_log) in GGUF
    conv1d                           C×K in GGUF, C×K×1 in MLX
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx

from ...kernels.mxfp4 import E2M1, e8m0_to_bfloat16
from ..checkpoint.quantization import Shape
from ..checkpoint.sharding import RankShard
from ..checkpoint.weights import CheckpointModel, build_model_tree, check_tensors
from ..families.config import DecoderConfig
from ..families.registry import read_config
from .blocks import PLAIN_DTYPES, read_plain, read_repacked
from .config import has_cpu_kernels, layer_format, num_trunk_layers, tensor_name
from .reader import GGUFTensor, open_gguf


def read_gguf(
    path: Path,
    config: Mapping[str, Any],
    rank_shard: RankShard | None = None,
    mtp: bool = False,
) -> CheckpointModel:
    """Reads a GGUF file's weights lazily; `config` is from `gguf_config`.

    Raises:
        ValueError: a tensor is missing, unexpected or has a wrong shape, or `mtp` is set.
    """
    if mtp:
        raise ValueError("the multi-token prediction layer of GGUF files is not supported")
    full, file = read_config(config), open_gguf(path)
    args = full if rank_shard is None else rank_shard.config
    weights: dict[str, mx.array] = {}
    readers: list[tuple[mx.array, Any]] = []
    for source, tensor in file.tensors.items():
        name = tensor_name(source, num_trunk_layers(file))
        if name is None:
            continue
        loader = _Loader(tensor, "quantization" in config and name == "model.embed_tokens.weight")
        for part, (shape, dtype) in loader.parts().items():
            part_name = f"{name.removesuffix('.weight')}.{part}" if part else name
            read = partial(_read, loader, part, part_name, full, rank_shard)
            if len(shape) == 1 or ".conv1d." in name:
                weights[part_name] = read()
                continue
            placeholder = _convert(part_name, mx.zeros(shape, dtype), full, rank_shard)
            weights[part_name] = placeholder
            readers.append((placeholder, read))
    formats = check_tensors(weights, args, config.get("quantization"))
    if has_cpu_kernels():  # as `repack` would convert them
        formats = {
            where: replace(each, mode=E2M1) if each.mode == "mxfp4" else each
            for where, each in formats.items()
        }
    model = build_model_tree(args, weights, formats)
    for layer in model.modules():
        if getattr(layer, "mode", "") == E2M1:
            layer.biases = None
    for placeholder, read in readers:
        model.weight_locations.add_reader(placeholder, read)
    return model


class _Loader:
    """Reads a tensor once, when the first of its arrays is needed."""

    def __init__(self, tensor: GGUFTensor, is_embedding: bool):
        self._tensor = tensor
        self._target = layer_format(tensor)
        self._casts_to_float16 = is_embedding and self._target is None
        self._arrays: dict[str, mx.array] = {}

    def parts(self) -> dict[str, tuple[Shape, mx.Dtype]]:
        """Shape and dtype of each array; an unquantized tensor's only array is named ""."""
        if self._target is None:
            dtype = PLAIN_DTYPES[self._tensor.type.name]
            return {"": (self._tensor.shape, mx.float16 if self._casts_to_float16 else dtype)}
        scales = mx.float16
        if self._target.mode == "mxfp4":
            scales = mx.bfloat16 if has_cpu_kernels() else mx.uint8
        dtypes = {"weight": mx.uint32, "scales": scales, "biases": scales}
        return {name: (shape, dtypes[name]) for name, shape in self._target.shapes(self._tensor.shape).items()}

    def take(self, part: str) -> mx.array:
        """Returns an array and releases it."""
        if part not in self._arrays:
            self._arrays = self._load()
        return self._arrays.pop(part)

    def _load(self) -> dict[str, mx.array]:
        if self._target is None:
            array = read_plain(self._tensor)
            return {"": array.astype(mx.float16) if self._casts_to_float16 else array}
        arrays = read_repacked(self._tensor, self._target)
        if self._target.mode == "mxfp4" and has_cpu_kernels():
            arrays["scales"] = e8m0_to_bfloat16(arrays["scales"])
        return arrays


def _read(
    loader: _Loader, part: str, name: str, config: DecoderConfig, shard: RankShard | None
) -> mx.array:
    return _convert(name, loader.take(part), config, shard)


def _convert(
    name: str, array: mx.array, config: DecoderConfig, shard: RankShard | None
) -> mx.array:
    """Converts an array to MLX's layout, and slices it for a rank."""
    *_, layer, kind = name.split(".")
    net = config.delta_net
    if config.model_type in ("llama", "mistral") and layer in ("q_proj", "k_proj"):
        heads = config.num_attention_heads if layer == "q_proj" else config.num_key_value_heads
        array = _swap(array, 0, heads, config.head_dim // 2, 2)
    elif layer == "shared_expert_gate":
        array = array.reshape(1, -1)
    elif net is not None and ".linear_attn." in name and layer != "norm":
        tile = 1, net.num_value_heads // net.num_key_heads, net.num_key_heads
        if layer in ("in_proj_qkv", "conv1d"):
            values = _swap(array[2 * net.key_dim :], 0, *tile)
            array = mx.concatenate([array[: 2 * net.key_dim], values])
            array = array[..., None] if layer == "conv1d" else array
        else:
            array = _swap(array, array.ndim - 1 if layer == "out_proj" else 0, *tile)
        if kind == "A_log":
            array = mx.log(-array)
    return array if shard is None else shard.slice_tensor(name, array)


def _swap(array: mx.array, axis: int, outer: int, rows: int, columns: int) -> mx.array:
    """Transposes an axis, read as outer × rows × columns × remaining, to columns × rows."""
    parts = array.reshape(*array.shape[:axis], outer, rows, columns, -1, *array.shape[axis + 1 :])
    return parts.swapaxes(axis + 1, axis + 2).reshape(array.shape)
