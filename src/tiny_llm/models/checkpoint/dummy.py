"""Dummy weights: random tensors with a config's shapes and formats.

Speed and memory depend on shapes and formats, not on values, so benchmarks need no checkpoint. Each
matrix's weights have a variance of about 1/I for I inputs, which keeps activations near unit scale.
"""

import math
from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from ..families.config_fields import MAX_INT32, invalid_field
from ..families.registry import read_config
from ..families.tensor_layout import MTP_PREFIX, converted_quantization
from .sharding import RankShard
from .tensor_shapes import Quantization, Shape, matrix_shapes, quantization_of, vector_shapes
from .weights import CheckpointModel, build_model_tree, layer_quantization

DTYPES = {"bfloat16": mx.bfloat16, "float16": mx.float16, "float32": mx.float32}

# Modes other than affine store a group's scale as an 8-bit code: e for 2^(e − 127) in mxfp4 and
# mxfp8, E4M3 in nvfp4.
E4M3_ONE_CODE = 0x38  # 1.0 in E4M3


def random_checkpoint(
    config: Mapping[str, Any], rank_shard: RankShard | None = None, mtp: bool = False
) -> CheckpointModel:
    """Builds a model with the weights from `random_tensors`.

    With `rank_shard`, builds only that rank's shard, holding one full tensor in memory at a time.
    """
    weights, formats = random_tensors(config, mtp)
    if rank_shard is None:
        return build_model_tree(read_config(config, mtp), weights, formats)
    for name in weights:
        weights[name] = rank_shard.slice_tensor(name, weights[name])
    return build_model_tree(rank_shard.config, weights, formats)


def random_tensors(
    config: Mapping[str, Any], mtp: bool = False
) -> tuple[dict[str, mx.array], dict[str, Quantization]]:
    """Creates lazy random tensors by name, and their quantization formats by layer path.

    Adding the MTP layer does not change the values of the other tensors.
    """
    args, dtype, common = read_config(config, mtp), _dtype(config), _quantization_of(config)
    weights: dict[str, mx.array] = {}
    formats: dict[str, Quantization] = {}
    names = [name for name, _ in (*matrix_shapes(args), *vector_shapes(args))]
    mtp_names = [name for name in names if name.startswith(MTP_PREFIX)]
    text_names = [name for name in names if not name.startswith(MTP_PREFIX)]
    keys: dict[str, mx.array] = {}
    for seed, group in enumerate((text_names, mtp_names)):
        keys.update(zip(group, mx.random.split(mx.random.key(seed), len(group)), strict=True))
    for path, matrix in matrix_shapes(args):
        quantized = _layer_quantization(common, path)
        if quantized is None:
            weights[f"{path}.weight"] = _random_normal(matrix, matrix[-1], keys[path]).astype(dtype)
            continue
        formats[path] = quantized
        for name, array in _random_quantized(matrix, quantized, dtype, keys[path]).items():
            weights[f"{path}.{name}"] = array
    for name, shape in vector_shapes(args):
        weights[name] = random_vector(name, shape, dtype, keys[name])
    return weights, formats


def random_vector(
    name: str, shape: Shape, dtype: mx.Dtype, key: mx.array | None = None
) -> mx.array:
    """Random tensor with a name and shape from `vector_shapes`.

    Gated DeltaNet's parameters result in a decay per token of about 0.1 to 1, as in real models.

    Args:
        dtype: dtype of all tensors but `A_log`, which is float32.
        key: MLX random key; None for MLX's global random state.
    """
    if name.endswith((".bias", ".sinks")):
        return (0.1 * mx.random.normal(shape, key=key)).astype(dtype)
    if name.endswith(".conv1d.weight"):
        return _random_normal(shape, shape[1], key).astype(dtype)
    if name.endswith(".A_log"):
        return mx.log(mx.random.uniform(1, 16, shape, key=key))
    if name.endswith(".dt_bias"):
        return mx.random.uniform(-7, -2, shape, key=key).astype(dtype)
    return mx.ones(shape, dtype)


def random_bytes(config: Mapping[str, Any], mtp: bool = False) -> int:
    """Total bytes of the tensors from `random_tensors`; ValueError if the config is invalid."""
    args, size, common = read_config(config, mtp), _dtype(config).size, _quantization_of(config)
    total = sum(math.prod(shape) * size for _, shape in vector_shapes(args))
    for path, matrix in matrix_shapes(args):
        if max(matrix) > MAX_INT32:
            raise ValueError(
                f"{path} has a dimension of {max(matrix):,}, which exceeds {MAX_INT32:,}"
            )
        quantization = _layer_quantization(common, path)
        if quantization is not None and matrix[-1] % quantization.group_size != 0:
            raise ValueError(
                f"{path} has rows of {matrix[-1]} weights, expected a multiple of the group size, "
                f"{quantization.group_size}"
            )
        bits = 8 * size if quantization is None else quantization.bits_per_weight
        total += int(math.prod(matrix) * bits) // 8
    return total


def _quantization_of(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    common = converted_quantization(quantization_of(config))
    if common is None or config.get("quantization") is not None:
        return common
    # In gpt-oss's original format, only the experts are quantized.
    paths = (path for path, _ in matrix_shapes(read_config(config)))
    return {**common, **{path: ".switch_mlp." in path for path in paths}}


def _layer_quantization(common: Mapping[str, Any] | None, path: str) -> Quantization | None:
    if common is None:
        return None
    return layer_quantization(Quantization.from_config(common), common.get(path, True))


def _dtype(config: Mapping[str, Any]) -> mx.Dtype:
    """Parses `dtype` (newer checkpoints) or `torch_dtype`; bfloat16 by default."""
    name = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    if not isinstance(name, str) or name not in DTYPES:
        raise invalid_field("dtype", name, f"one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _random_normal(shape: Shape, inputs: int, key: mx.array | None) -> mx.array:
    return mx.random.normal(shape, key=key) * inputs**-0.5


def _random_quantized(
    matrix: Shape, quantization: Quantization, dtype: mx.Dtype, key: mx.array
) -> dict[str, mx.array]:
    shapes = quantization.shapes(matrix)
    deviation = matrix[-1] ** -0.5
    *rows, words = shapes["weight"]
    halves = mx.random.randint(0, 2**16, (*rows, 2 * words), mx.uint16, key)
    stored = {"weight": halves.view(mx.uint32)}
    if quantization.mode == "affine":
        # The standard deviation of uniform integers from 0 to n − 1 is √((n² − 1)/12).
        max_code = 2**quantization.bits - 1
        scale = deviation / math.sqrt(((max_code + 1) ** 2 - 1) / 12)
        stored["scales"] = mx.full(shapes["scales"], scale, dtype)
        stored["biases"] = mx.full(shapes["biases"], -scale * max_code / 2, dtype)
        return stored
    # Random 4-bit codes (E2M1) have a standard deviation of about 2², and random 8-bit codes (E4M3
    # without the highest exponent bit) one of about 2⁻¹.
    exponent = round(math.log2(deviation))
    if quantization.mode == "nvfp4":
        code = max(E4M3_ONE_CODE + 8 * (exponent - 2), 8)
    else:
        code = 127 + exponent - (2 if quantization.bits == 4 else -1)
    if quantization.bits == 8:  # clears an exponent bit: with all of them set, a code may be NaN
        stored["weight"] = stored["weight"] & 0xBFBFBFBF
    return {**stored, "scales": mx.full(shapes["scales"], code, mx.uint8)}
