"""Lookup tables in GGUF blocks, which are dequantized row by row when they are looked up.

Gemma 4's table of per-layer inputs, larger than the rest of the small models, stays in its file.
"""

import mlx.core as mx
import numpy as np

from ..checkpoint.weights import TreeNode
from .blocks import PLAIN_DTYPES
from .reader import BlockType, GGUFTensor

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
