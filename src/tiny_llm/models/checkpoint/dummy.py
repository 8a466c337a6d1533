"""Dummy weights: random tensors in a config's shapes and formats.

Speed and memory depend on shapes and formats, not on values, so benchmarks need no checkpoint. Each
matrix has a variance of about 1/I, which keeps activations near unit scale.
"""

import math
from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from ..families.registry import read_config
from .quantization import Quantization, Shape
from .sharding import RankShard
from .tensor_shapes import matrix_shapes, vector_shapes
from .weights import CheckpointModel, build_model_tree, layer_quantization

DTYPES = {"bfloat16": mx.bfloat16, "float16": mx.float16, "float32": mx.float32}

# Codes of a group's scale: 2^(e − 127) for mxfp4 and mxfp8, E4M3 for nvfp4; chosen for weights of
# about 1/√I.
E4M3_ONE_CODE = 0x38


def random_checkpoint(
    config: Mapping[str, Any], seed: int = 0, part: RankShard | None = None
) -> CheckpointModel:
    """Builds a model with random weights; arguments and errors as in `random_tensors`.

    With `part`, builds only that rank's shard, holding one full tensor in memory at a time.
    """
    weights, formats = random_tensors(config, seed)
    if part is None:
        return build_model_tree(read_config(config), weights, formats)
    for name in weights:
        weights[name] = part.slice_tensor(name, weights[name])
    return build_model_tree(part.config, weights, formats)


def random_tensors(
    config: Mapping[str, Any], seed: int = 0
) -> tuple[dict[str, mx.array], dict[str, Quantization]]:
    """Creates a checkpoint's tensors: lazy, random, quantized according to the config.

    Args:
        config: parsed `config.json`.
        seed: seed of the weights.

    Returns:
        (tensor name -> array, layer path -> quantization format).

    Raises:
        ValueError: the config is invalid.
    """
    args, quantization = read_config(config), config.get("quantization")
    dtype = _dtype(config)
    weights: dict[str, mx.array] = {}
    formats: dict[str, Quantization] = {}
    names = [*matrix_shapes(args), *vector_shapes(args)]
    keys = iter(mx.random.split(mx.random.key(seed), len(names)))
    for path, matrix in matrix_shapes(args):
        quantized = None
        if quantization is not None:
            quantized = layer_quantization(
                Quantization.from_config(quantization), quantization.get(path, True)
            )
        if quantized is None:
            weights[f"{path}.weight"] = _random_normal(matrix, matrix[-1], next(keys)).astype(dtype)
            continue
        formats[path] = quantized
        for name, array in _random_quantized(matrix, quantized, dtype, next(keys)).items():
            weights[f"{path}.{name}"] = array
    for name, shape in vector_shapes(args):
        if name.endswith(".bias"):
            weights[name] = (0.1 * mx.random.normal(shape, key=next(keys))).astype(dtype)
        else:
            weights[name] = mx.ones(shape, dtype)
    return weights, formats


def _dtype(config: Mapping[str, Any]) -> mx.Dtype:
    """Dtype of `dtype` (newer checkpoints) or `torch_dtype`; bfloat16 by default."""
    name = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    if name not in DTYPES:
        raise ValueError(f"config.json has dtype {name!r}; tiny-llm knows {', '.join(DTYPES)}")
    return DTYPES[name]


def _random_normal(shape: Shape, inputs: int, key: mx.array) -> mx.array:
    return mx.random.normal(shape, key=key) * inputs**-0.5


def _random_quantized(
    matrix: Shape, form: Quantization, dtype: mx.Dtype, key: mx.array
) -> dict[str, mx.array]:
    """Random integers with scales for a variance of 1/I."""
    shapes = form.shapes(matrix)
    size = matrix[-1] ** -0.5
    *rows, words = shapes["weight"]
    halves = mx.random.randint(0, 2**16, (*rows, 2 * words), mx.uint16, key)
    stored = {"weight": halves.view(mx.uint32)}
    if form.mode == "affine":
        # Uniform integers from 0 to n − 1 have a standard deviation of √((n² − 1)/12).
        max_code = 2**form.bits - 1
        scale = size / math.sqrt(((max_code + 1) ** 2 - 1) / 12)
        stored["scales"] = mx.full(shapes["scales"], scale, dtype)
        stored["biases"] = mx.full(shapes["biases"], -scale * max_code / 2, dtype)
        return stored
    exponent = round(math.log2(size))
    if form.mode == "nvfp4":
        code = max(E4M3_ONE_CODE + 8 * (exponent - 2), 8)
    else:
        code = 127 + exponent - (2 if form.bits == 4 else -1)
    if form.bits == 8:  # a byte with all exponent bits set may be NaN
        stored["weight"] = stored["weight"] & 0xBFBFBFBF
    return {**stored, "scales": mx.full(shapes["scales"], code, mx.uint8)}
