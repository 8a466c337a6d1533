"""Checkpoint weights as a tree of layers, repacked for the CPU kernels.

The tree has the attributes of `mlx_lm`'s model that the course's models and `Decoder` use; these
models share its arrays.

The CPU kernels support 4- and 8-bit affine weights and 4-bit floating-point weights, in groups of
32, 64 and 128, with 16-bit scales. Other formats would be multiplied by MLX, which is hundreds of
times slower on a CPU. Loading therefore converts weights in other formats to a supported one, in
which every weight keeps its exact value:

    affine 2, 3 bits   affine 4 bits: the same integers, scales and biases
    affine 5, 6 bits   affine 8 bits: the same integers, scales and biases
    mxfp4              the same codes, with bfloat16 scales (`kernels/prepack.py`), if the
                       activations are bfloat16
    mxfp8, nvfp4,      unquantized in the dtype of the activations, which represents weight · scale
    other mxfp4        exactly

Converted weights are larger in memory than in the file. On a GPU, nothing is repacked: MLX's Metal
kernels are fast for all formats.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx.utils import tree_unflatten

from ... import kernels
from ...errors import summarize
from ...kernels.prepack import E2M1, WeightLocations, copy_tree, e8m0_to_bfloat16, is_lookup_table
from ...quantize import dequantize_linear
from ..families.config import DecoderConfig
from ..families.linear import activation_dtype
from ..families.registry import config_of, read_config
from ..families.tensor_layout import (
    MTP_PREFIX,
    convert_layout,
    converted_quantization,
    stack_experts,
    text_tensor_names,
)
from .layout import TensorInfo, check_dtypes, read_tensor_headers, weight_files
from .sharding import RankShard
from .tensor_shapes import (
    LOOKUP_TABLES,
    Quantization,
    Shape,
    matrix_shapes,
    quantization_of,
    vector_shapes,
)

# Minimum bytes of each row's slice for reading a column shard directly. Shorter slices are taken
# from the full matrix in memory, because disks read entire pages, with readahead.
MIN_READ_BYTES = 2**14

# RoPE frequencies in old Llama checkpoints; ignored, because the config determines them.
ROPE_BUFFER_SUFFIX = ".rotary_emb.inv_freq"


class TreeNode(Module):
    """Node of the weight tree: named children, or one layer's arrays and format."""


class CheckpointModel(Module):
    """Root of the weight tree: `model`, `lm_head` unless tied, `mtp` if loaded."""

    def __init__(self, args: DecoderConfig, parts: Mapping[str, Any]):
        super().__init__()
        self.args = args
        self.weight_locations = WeightLocations()  # of arrays not yet read
        self.num_skipped = 0  # tensors of a vision tower or an MTP layer
        for name, part in parts.items():
            setattr(self, name, part)

    @property
    def layers(self) -> list[TreeNode]:
        return self.model.layers


def read_checkpoint(
    folder: Path, config: Mapping[str, Any], rank_shard: RankShard | None = None, mtp: bool = False
) -> CheckpointModel:
    """Reads a checkpoint's weights lazily.

    Raises:
        ValueError: the config is invalid, or a tensor is missing, unexpected or has a wrong shape
            or dtype; the message names it.
    """
    full = read_config(config, mtp)
    args = full if rank_shard is None else rank_shard.config
    stored = read_tensor_headers(folder)
    loaded: dict[str, mx.array] = {}
    for file in weight_files(folder):
        loaded.update(mx.load(str(file)))  # type: ignore[arg-type]
    names = text_tensor_names(loaded, full)
    if mtp and not any(name.startswith(MTP_PREFIX) for name in names):
        raise ValueError(
            "it has no mtp.* tensors, which multi-token prediction requires and most conversions "
            "to MLX drop; use the original checkpoint or another speculation method"
        )
    used = {name: source for name, source in names.items() if not name.endswith(ROPE_BUFFER_SUFFIX)}
    weights = {name: loaded[source] for name, source in used.items()}
    if args.tie_word_embeddings:
        weights.pop("lm_head.weight", None)  # some converters store a copy of the embedding
    convert_layout(weights, full)
    unchanged = [name for name in weights if weights[name] is loaded.get(names.get(name, ""))]
    if rank_shard is not None:
        weights = {name: rank_shard.slice_tensor(name, array) for name, array in weights.items()}
    if args.experts is not None:
        stack_experts(weights, args)
    formats = check_tensors(weights, args, converted_quantization(quantization_of(config)))
    check_dtypes({source: stored[source] for source in names.values()})
    model = build_model_tree(args, weights, formats)
    model.num_skipped = len(loaded) - len(names)
    for name in weights.keys() & unchanged:
        tensor = stored[names[name]]
        if rank_shard is None:
            model.weight_locations.add(weights[name], tensor.file, tensor.header_end + tensor.begin)
        elif not rank_shard.is_zero_bias(name):
            _register_source(model.weight_locations, weights[name], name, tensor, rank_shard)
    return model


def _register_source(
    locations: WeightLocations, array: mx.array, name: str, tensor: TensorInfo, shard: RankShard
) -> None:
    ranges = shard.byte_ranges(name, tensor)
    if len(ranges) == 1:
        locations.add(array, tensor.file, ranges[0].start, limit_readahead=True)
    if len(ranges) == 1 or len(ranges[0]) >= MIN_READ_BYTES:
        locations.add_reader(array, partial(shard.read_tensor, name, tensor))


def build_model_tree(
    args: DecoderConfig, weights: Mapping[str, mx.array], formats: Mapping[str, Quantization]
) -> CheckpointModel:
    """Builds the tree from arrays by name and formats by layer path, and repacks it."""
    tree: Any = tree_unflatten(list(weights.items()))
    parts = {name: _build_node(part, name, formats) for name, part in tree.items()}
    model = CheckpointModel(args, parts)
    repack(model, activation_dtype(model.model, args.exceeds_float16))
    return model


def check_tensors(
    weights: Mapping[str, mx.array], args: DecoderConfig, quantization: Mapping[str, Any] | None
) -> dict[str, Quantization]:
    """Checks all names and shapes; returns the quantized layers' formats."""
    formats: dict[str, Quantization] = {}
    expected: dict[str, Shape] = {}
    for path, matrix in matrix_shapes(args):
        found = _quantization(path, matrix, weights, quantization)
        if found is not None:
            formats[path] = found
        for name, shape in (found.shapes(matrix) if found else {"weight": matrix}).items():
            expected[f"{path}.{name}"] = shape
    expected.update(vector_shapes(args))
    for name, shape in expected.items():
        if name in weights and weights[name].shape != shape:
            form = formats.get(name.rpartition(".")[0])
            why = f" for {form.bits} bits in groups of {form.group_size}" if form else ""
            raise ValueError(
                f"{name} has shape {_format_shape(weights[name].shape)}, expected "
                f"{_format_shape(shape)}{why}"
            )
    missing = [name for name in expected if name not in weights]
    unknown = sorted(weights.keys() - expected.keys())
    reasons = []
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        reasons.append(
            f"{summarize(missing, 5)} {verb} missing from the checkpoint; its config implies shape "
            f"{_format_shape(expected[missing[0]])}"
        )
    if unknown:
        noun = "is not a tensor" if len(unknown) == 1 else "are not tensors"
        model = f"a {args.model_type} model with this config"
        reasons.append(f"{summarize(unknown, 5)} {noun} of {model}")
    if reasons:
        raise ValueError("; ".join(reasons))
    return formats


def layer_quantization(common: Quantization, entry: Any) -> Quantization | None:
    """Format from a layer's entry in the config; True stands for the format `common`."""
    if isinstance(entry, dict):
        return Quantization.from_config(entry)
    return common if entry else None


def _quantization(
    path: str,
    matrix: Shape,
    weights: Mapping[str, mx.array],
    quantization: Mapping[str, Any] | None,
) -> Quantization | None:
    """A layer's format from the config or its arrays; None if unquantized."""
    if quantization is None:
        return None
    common, entry = Quantization.from_config(quantization), quantization.get(path)
    if entry is not None:
        return layer_quantization(common, entry)
    weight, scales = weights.get(f"{path}.weight"), weights.get(f"{path}.scales")
    if scales is None:
        return None
    I = matrix[-1]
    if common.mode != "affine" or weight is None or weight.ndim != scales.ndim:
        return common
    if weight.ndim != len(matrix) or not 0 < scales.shape[-1] <= I:
        return common
    inferred = Quantization(I // scales.shape[-1], weight.shape[-1] * 32 // I)
    return inferred if inferred.shapes(matrix)["weight"] == weight.shape else common


def _format_shape(shape: Shape) -> str:
    return "×".join(map(str, shape))


def _build_node(tree: Any, path: str, formats: Mapping[str, Quantization]) -> Any:
    if isinstance(tree, mx.array):
        return tree
    if isinstance(tree, list):
        return [_build_node(each, f"{path}.{index}", formats) for index, each in enumerate(tree)]
    part = TreeNode()
    part.is_lookup_table = path in LOOKUP_TABLES
    for name, subtree in tree.items():
        setattr(part, name, _build_node(subtree, f"{path}.{name}", formats))
    if path in formats:
        part.group_size = formats[path].group_size
        part.bits = formats[path].bits
        part.mode = formats[path].mode
    return part


def repack(module: Any, dtype: mx.Dtype = mx.bfloat16) -> None:
    """Lazily converts layers whose format the CPU kernels do not support.

    `dtype` is that of the activations. A no-op on a GPU, or if the kernels are not built.
    """
    for layer in _repackable_layers(module):
        mode = getattr(layer, "mode", "affine")
        if mode == "affine":
            _widen(layer)
        elif mode == "mxfp4" and dtype == mx.bfloat16:
            _widen_scales(layer)
        else:
            _dequantize(layer, dtype)


def repacked(mlx_model: Any) -> Any:
    if not _repackable_layers(mlx_model):
        return mlx_model
    model = copy_tree(mlx_model)
    repack(model, activation_dtype(model.model, config_of(model.args).exceeds_float16))
    return model


def unpack_integers(weight: mx.array, bits: int, group_size: int) -> mx.array:
    """Unpacks weights to uint32 integers: N..×(I·bits/32) -> N..×I."""
    groups = (*weight.shape[:-1], weight.shape[-1] * 32 // bits // group_size)
    ones, zeros = mx.ones(groups), mx.zeros(groups)
    return mx.dequantize(weight, ones, zeros, group_size=group_size, bits=bits).astype(mx.uint32)


def pack_integers(integers: mx.array, bits: int) -> mx.array:
    """Packs 4- or 8-bit integers into uint32: N..×I -> N..×(I·bits/32)."""
    *N, I = integers.shape
    per_word = 32 // bits
    shifts = mx.arange(per_word, dtype=mx.uint32) * bits
    words = integers.reshape(*N, I // per_word, per_word) << shifts
    return words.sum(axis=-1).astype(mx.uint32)


def _repackable_layers(module: Any) -> list[Any]:
    if not (kernels.computes_on_cpu() and kernels.is_built()):
        return []
    layers = [layer for layer in module.modules() if "scales" in layer]
    return [layer for layer in layers if _is_repackable(layer) and not is_lookup_table(layer)]


def _is_repackable(layer: Any) -> bool:
    mode = getattr(layer, "mode", "affine")
    if mode == "affine":
        narrow = layer.bits in (2, 3, 5, 6)
        return narrow and kernels.supports_quantization(4, layer.group_size, layer.scales.dtype)
    return mode in ("mxfp4", "mxfp8", "nvfp4") and "global_scale" not in layer


def _widen(layer: Any) -> None:
    """Repacks affine integers: 2 and 3 bits to 4, 5 and 6 bits to 8."""
    wide = 4 if layer.bits < 4 else 8
    layer.weight = pack_integers(unpack_integers(layer.weight, layer.bits, layer.group_size), wide)
    layer.bits = wide


def _widen_scales(layer: Any) -> None:
    layer.scales = e8m0_to_bfloat16(layer.scales)
    layer.biases, layer.mode = None, E2M1


def _dequantize(layer: Any, dtype: mx.Dtype) -> None:
    layer.weight = dequantize_linear(layer).astype(dtype)
    for name in ("scales", "group_size", "bits", "mode"):
        delattr(layer, name)
