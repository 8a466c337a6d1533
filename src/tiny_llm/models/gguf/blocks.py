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
as for other checkpoints (`checkpoint/weights.py`).

Gemma 4's table of per-layer inputs, larger than the rest of the small models, stays in its file: a
`LookupTable` is dequantized row by row when it is looked up.
"""

import math

import mlx.core as mx
import numpy as np

from ... import kernels
from ...kernels.prepack import e8m0_to_bfloat16
from ..checkpoint.tensor_shapes import Quantization, Shape
from ..checkpoint.weights import TreeNode
from .reader import BlockType, GGUFTensor

PLAIN_DTYPES = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
BITS = {"Q4": 4, "Q5": 5, "Q6": 8, "Q8": 8}  # by prefix of the type


def has_cpu_kernels() -> bool:
    """Whether the CPU kernels run, to whose formats `checkpoint/weights.py` converts weights."""
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


TABLE_TYPES = (*PLAIN_DTYPES, "Q4_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K")  # others are repacked


class LookupTable(TreeNode):
    """A table V×I; `weight` has the rows' bytes."""

    is_lookup_table = True

    def __init__(self, tensor: GGUFTensor):
        super().__init__()
        rows, _ = tensor.shape
        self._tensor = tensor
        self.weight = mx.zeros((rows, tensor.nbytes // rows), mx.uint8)

    def read(self) -> mx.array:
        """Reads `weight`, where files cannot be mapped into memory."""
        tensor = self._tensor
        data = np.fromfile(tensor.file, np.uint8, tensor.nbytes, offset=tensor.offset)
        return mx.array(data).reshape(tensor.shape[0], -1)

    def lookup(self, ids: mx.array) -> mx.array:
        """Looks up rows: N.. -> N..×I, float32 unless the table is stored in 16 bits."""
        return dequantize_rows(self.weight[ids], self._tensor.type)


def dequantize_rows(rows: mx.array, block_type: BlockType) -> mx.array:
    """Dequantizes N..×bytes to N..×I."""
    name = block_type.name
    if name in PLAIN_DTYPES:
        return rows.view(PLAIN_DTYPES[name])
    blocks = rows.reshape(*rows.shape[:-1], -1, block_type.nbytes)
    if name in ("Q4_0", "Q8_0"):
        codes = blocks[..., 2:]
        codes = codes.view(mx.int8) if name == "Q8_0" else _nibbles(codes, 16).astype(mx.int8) - 8
        weights = _half(blocks, 0) * codes
    elif name == "Q6_K":
        low = _nibbles(blocks[..., :128], 64).reshape(*blocks.shape[:-1], 2, 4, 32)
        high = blocks[..., 128:192].reshape(*blocks.shape[:-1], 2, 1, 32)
        high = high >> mx.array([[0], [2], [4], [6]], mx.uint8) & 3
        codes = (low | high << 4).astype(mx.int8).reshape(*blocks.shape[:-1], 16, 16) - 32
        scales = _half(blocks, 208) * blocks[..., 192:208].view(mx.int8)
        weights = scales[..., None] * codes
    else:
        start = 16 if name == "Q4_K" else 48
        codes = _nibbles(blocks[..., start:], 32).reshape(*blocks.shape[:-1], 8, 32)
        if name == "Q5_K":
            groups = mx.arange(8, dtype=mx.uint8)[:, None]
            codes = codes | (blocks[..., None, 16:48] >> groups & 1) << 4
        low, middle, high = mx.split(blocks[..., 4:16], 3, axis=-1)
        scales = mx.concatenate([low & 63, high & 15 | low >> 6 << 4], axis=-1)
        minima = mx.concatenate([middle & 63, high >> 4 | middle >> 6 << 4], axis=-1)
        scales, minima = _half(blocks, 0) * scales, _half(blocks, 2) * minima
        weights = scales[..., None] * codes - minima[..., None]
    return weights.reshape(*rows.shape[:-1], -1)


def _half(blocks: mx.array, start: int) -> mx.array:
    return blocks[..., start : start + 2].view(mx.float16).astype(mx.float32)


def _nibbles(codes: mx.array, run: int) -> mx.array:
    """Unpacks 4-bit integers; a run of bytes has low nibbles first, then high nibbles."""
    runs = codes.reshape(*codes.shape[:-1], -1, run)
    return mx.concatenate([runs & 15, runs >> 4], axis=-1).reshape(*codes.shape[:-1], -1)
