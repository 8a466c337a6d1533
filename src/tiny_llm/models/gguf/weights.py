"""GGUF weights as a tree of layers, repacked while they are evaluated.

Each matrix starts as a lazy placeholder, from which sizes and formats are checked. Evaluation
replaces it by the result of its reader. Tensors are converted to the layout of MLX's models:

    llama: rows of q_proj, k_proj    pairs of RoPE are adjacent in GGUF, half a head apart in MLX
    Gated DeltaNet: value heads      GGUF interleaves those of different key heads
    ssm_a                            −exp(A_log) in GGUF
    conv1d                           C×K in GGUF, C×K×1 in MLX
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx

from ...kernels.prepack import E2M1
from ..checkpoint.sharding import RankShard
from ..checkpoint.weights import CheckpointModel, build_model_tree, check_tensors
from ..families.config import DecoderConfig
from ..families.registry import read_config
from ..families.tensor_layout import unused_tensors
from .blocks import TABLE_TYPES, LookupTable, array_types, has_cpu_kernels, read_tensor
from .config import tensor_names
from .reader import GGUFTensor, open_gguf


def read_gguf(
    path: Path, config: Mapping[str, Any], rank_shard: RankShard | None = None, mtp: bool = False
) -> CheckpointModel:
    """Reads a GGUF file's weights lazily; `config` is from `gguf_config`.

    Raises:
        ValueError: a tensor is missing, unexpected or has a wrong shape, or `mtp` is set.
    """
    if mtp:
        raise ValueError("the multi-token prediction layer of GGUF files is not supported")
    full, file = read_config(config), open_gguf(path)
    weights: dict[str, mx.array] = {}
    readers = {}
    unused = unused_tensors(full)
    for source_name, tensor in file.tensors.items():
        names = tensor_names(source_name, file)
        # Activations have the dtype of the embedding, and scales are float16.
        is_cast = source_name == "token_embd.weight" and "quantization" in config
        dtype = mx.bfloat16 if full.exceeds_float16 else mx.float16
        source = _Source(tensor, names, full, rank_shard, dtype if is_cast else None)
        for name, part in product(names, array_types(tensor)):
            part_name = f"{name.removesuffix('.weight')}.{part}" if part else name
            if part_name in unused:
                continue
            if len(tensor.shape) == 1 or ".conv1d." in name:
                weights[part_name] = source.read(name, part)
            else:
                weights[part_name] = source.placeholder(name, part)
                readers[part_name] = partial(source.read, name, part)
    args = full if rank_shard is None else rank_shard.config
    formats = check_tensors(weights, args, config.get("quantization"))
    if has_cpu_kernels():
        formats = {
            where: replace(each, mode=E2M1) if each.mode == "mxfp4" else each
            for where, each in formats.items()
        }
    model = build_model_tree(args, weights, formats)
    for layer in model.modules():
        if getattr(layer, "mode", "") == E2M1:
            layer.biases = None
    locations = model.weight_locations
    for name, read in readers.items():
        locations.add_reader(weights[name], read)
    stored = file.tensors.get("per_layer_token_embd.weight")
    if stored is not None and stored.type.name in TABLE_TYPES:
        table = model.model.embed_tokens_per_layer = LookupTable(stored)
        locations.add(table.weight, stored.file, stored.offset)
        locations.add_reader(table.weight, table.read)
    return model


@dataclass
class _Source:
    """A tensor, read once, when the first of its arrays is needed."""

    tensor: GGUFTensor
    names: tuple[str, ...]  # in MLX's model; several for a fused tensor
    config: DecoderConfig
    shard: RankShard | None
    dtype: mx.Dtype | None  # cast of unquantized weights
    arrays: dict[tuple[str, str], mx.array] = field(default_factory=dict)

    def placeholder(self, name: str, part: str) -> mx.array:
        shape, dtype = array_types(self.tensor)[part]
        return self._convert(name, part, mx.zeros(shape, dtype))

    def read(self, name: str, part: str) -> mx.array:
        """Returns an array in MLX's layout, and releases it."""
        if (name, part) not in self.arrays:
            stored = read_tensor(self.tensor)
            self.arrays = {(name, part): stored[part] for name in self.names for part in stored}
        return self._convert(name, part, self.arrays.pop((name, part)))

    def _convert(self, name: str, part: str, array: mx.array) -> mx.array:
        config, net = self.config, self.config.delta_net
        *_, layer, kind = name.split(".")
        if len(self.names) > 1:
            array = mx.split(array, len(self.names), axis=-2)[self.names.index(name)]
        if config.model_type in ("llama", "mistral") and layer in ("q_proj", "k_proj"):
            heads = config.num_attention_heads if layer == "q_proj" else config.num_key_value_heads
            array = _swap(array, 0, heads, config.head_dim // 2, 2)
        elif layer == "shared_expert_gate":
            array = array.reshape(1, -1)
        elif net is not None and ".linear_attn." in name and layer != "norm":
            tile = 1, net.num_value_heads // net.num_key_heads, net.num_key_heads
            if layer in ("in_proj_qkv", "conv1d"):
                keys, values = array[: 2 * net.key_dim], array[2 * net.key_dim :]
                array = mx.concatenate([keys, _swap(values, 0, *tile)])
                array = array[..., None] if layer == "conv1d" else array
            else:
                array = _swap(array, array.ndim - 1 if layer == "out_proj" else 0, *tile)
            if kind == "A_log":
                array = mx.log(-array)
        if part == "" and self.dtype is not None:
            array = array.astype(self.dtype)
        name = f"{name.removesuffix('.weight')}.{part}" if part else name
        return array if self.shard is None else self.shard.slice_tensor(name, array)


def _swap(array: mx.array, axis: int, outer: int, rows: int, columns: int) -> mx.array:
    """Transposes an axis, read as outer × rows × columns × remaining, to columns × rows."""
    parts = array.reshape(*array.shape[:axis], outer, rows, columns, -1, *array.shape[axis + 1 :])
    return parts.swapaxes(axis + 1, axis + 2).reshape(array.shape)
