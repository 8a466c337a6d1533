"""Random weights in the shapes and formats of a config, for measuring without a checkpoint.

Speed and memory depend on shapes and formats, not on what the weights say. The text of such a model
is noise. Each matrix has about the variance 1/I, which keeps activations near unit size.
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

# The exponents of a group's scale: 2^(e − 127) for mxfp4 and mxfp8; 8 bits of floating point, E4M3,
# for nvfp4. They are chosen for values of about one over the square root of I.
E4M3_ONE_CODE = 0x38


def random_checkpoint(
    config: Mapping[str, Any], seed: int = 0, part: RankShard | None = None
) -> CheckpointModel:
    """A model of the config's sizes; arguments and errors as `random_tensors`.

    Of a `part`, what it has of the whole model's weights, which are drawn one after the other.
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
    """The tensors of a checkpoint, which are drawn when they are evaluated.

    All layers with a matrix are quantized as the config says; none, if it does not.

    Args:
        config: a parsed `config.json`.
        seed: of the weights.

    Returns:
        (tensors by name, the formats of quantized layers by path).

    Raises:
        ValueError: the config makes no sense.
    """
    args, quantization = read_config(config), config.get("quantization")
    dtype = _dtype(config)
    weights: dict[str, mx.array] = {}
    formats: dict[str, Quantization] = {}
    names = [*matrix_shapes(args), *vector_shapes(args)]
    keys = iter(mx.random.split(mx.random.key(seed), len(names)))
    for path, matrix in matrix_shapes(args):
        found = None
        if quantization is not None:
            found = layer_quantization(
                Quantization.from_config(quantization), quantization.get(path, True)
            )
        if found is None:
            weights[f"{path}.weight"] = _random_normal(matrix, matrix[-1], next(keys)).astype(dtype)
            continue
        formats[path] = found
        for name, array in _random_quantized(matrix, found, dtype, next(keys)).items():
            weights[f"{path}.{name}"] = array
    for name, shape in vector_shapes(args):
        if name.endswith(".bias"):
            weights[name] = (0.1 * mx.random.normal(shape, key=next(keys))).astype(dtype)
        else:
            weights[name] = mx.ones(shape, dtype)
    return weights, formats


def _dtype(config: Mapping[str, Any]) -> mx.Dtype:
    """What `torch_dtype`, or `dtype` in newer checkpoints, says; bfloat16 if there is none."""
    name = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    if name not in DTYPES:
        raise ValueError(f"config.json has dtype {name!r}; tiny-llm knows {', '.join(DTYPES)}")
    return DTYPES[name]


def _random_normal(shape: Shape, inputs: int, key: mx.array) -> mx.array:
    return mx.random.normal(shape, key=key) * inputs**-0.5


def _random_quantized(
    matrix: Shape, form: Quantization, dtype: mx.Dtype, key: mx.array
) -> dict[str, mx.array]:
    """Random integers, and scales that give them the variance 1/I."""
    shapes = form.shapes(matrix)
    size = matrix[-1] ** -0.5
    *rows, words = shapes["weight"]
    halves = mx.random.randint(0, 2**16, (*rows, 2 * words), mx.uint16, key)
    stored = {"weight": halves.view(mx.uint32)}
    if form.mode == "affine":
        # Uniform integers from 0 to n − 1 have a standard deviation of √((n² − 1)/12).
        most = 2**form.bits - 1
        scale = size / math.sqrt(((most + 1) ** 2 - 1) / 12)
        stored["scales"] = mx.full(shapes["scales"], scale, dtype)
        stored["biases"] = mx.full(shapes["biases"], -scale * most / 2, dtype)
        return stored
    exponent = round(math.log2(size))
    if form.mode == "nvfp4":
        code = max(E4M3_ONE_CODE + 8 * (exponent - 2), 8)
    else:
        code = 127 + exponent - (2 if form.bits == 4 else -1)
    if form.bits == 8:  # a byte with all bits of the exponent set may be no number
        stored["weight"] = stored["weight"] & 0xBFBFBFBF
    return {**stored, "scales": mx.full(shapes["scales"], code, mx.uint8)}
