"""Repacking of GGUF blocks to MLX's quantization formats.

    F32, F16, BF16        as they are
    Q4_0, Q4_1            affine 4 bits, exact
    Q5_0, Q5_1            affine 5 bits, exact
    Q8_0                  affine 8 bits, exact
    Q4_K, Q5_K            affine 4 and 5 bits; integers exact, scales rounded to float16
    Q6_K                  affine 8 bits, see `read_gguf_blocks`
    MXFP4                 mxfp4, exact

Groups have 32 weights: weight = q · scale + bias. K-quants store scale and bias as a product of a
float16 and a 6-bit integer, of which float16 keeps 11 of 17 bits: the error is at most 2⁻⁹ steps
for the scale and, for a bias of b steps, b · 2⁻¹² steps. On a CPU, 5-bit weights become 8-bit ones,
as for other checkpoints (`checkpoint/repack.py`).
"""

import math

import mlx.core as mx
import numpy as np

from ... import kernels
from ...kernels.mxfp4 import e8m0_to_bfloat16
from ..checkpoint.quantization import Quantization, Shape
from .reader import GGUFTensor

PLAIN_DTYPES = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
BITS = {"Q4": 4, "Q5": 5, "Q6": 8, "Q8": 8}  # by prefix of the type


def has_cpu_kernels() -> bool:
    """Whether weights are converted for the CPU kernels (`checkpoint/repack.py`)."""
    return kernels.computes_on_cpu() and kernels.is_built()


def repacked_format(tensor: GGUFTensor) -> Quantization | None:
    """Format of a repacked tensor; None if it stays unquantized."""
    name = tensor.type.name
    if name in PLAIN_DTYPES:
        return None
    if name == "MXFP4":
        return Quantization(32, 4, "mxfp4")
    bits = BITS[name[:2]]
    return Quantization(32, 8 if bits == 5 and has_cpu_kernels() else bits)


def array_types(tensor: GGUFTensor) -> dict[str, tuple[Shape, mx.Dtype]]:
    """Shape and dtype of the arrays that `read_tensor` returns."""
    target = repacked_format(tensor)
    if target is None:
        return {"": (tensor.shape, PLAIN_DTYPES[tensor.type.name])}
    scales = mx.float16
    if target.mode == "mxfp4":
        scales = mx.bfloat16 if has_cpu_kernels() else mx.uint8
    shapes = target.shapes(tensor.shape)
    return {name: (shapes[name], mx.uint32 if name == "weight" else scales) for name in shapes}


def read_tensor(tensor: GGUFTensor) -> dict[str, mx.array]:
    """Reads a tensor as MLX's arrays: weight, scales, biases; or "" if unquantized."""
    target = repacked_format(tensor)
    if target is None:
        dtype = PLAIN_DTYPES[tensor.type.name]
        kind = np.float32 if dtype == mx.float32 else np.uint16
        numbers = np.fromfile(tensor.file, kind, math.prod(tensor.shape), offset=tensor.offset)
        return {"": mx.array(numbers).view(dtype).reshape(tensor.shape)}
    *N, O, I = tensor.shape
    arrays = kernels.extension().read_gguf_blocks(
        str(tensor.file), tensor.offset, tensor.type.name, math.prod(N) * O, I, target.bits
    )
    shapes = target.shapes(tensor.shape)
    named = {name: x.reshape(shapes[name]) for name, x in zip(shapes, arrays, strict=True)}
    if target.mode == "mxfp4" and has_cpu_kernels():
        named["scales"] = e8m0_to_bfloat16(named["scales"])
    return named
