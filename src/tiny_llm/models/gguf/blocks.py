"""Repacking of GGUF blocks to MLX's quantization formats.

    F32, F16, BF16        as they are
    Q4_0, Q4_1            affine 4 bits, exact
    Q5_0, Q5_1            affine 5 bits, exact
    Q8_0                  affine 8 bits, exact
    Q4_K, Q5_K            affine 4 and 5 bits; integers exact, scales rounded to float16
    Q6_K                  affine 8 bits, see `_q6_k`
    MXFP4                 mxfp4, exact

Groups have 32 weights: weight = q · scale + bias. K-quants store scale and bias as a product of a
float16 and a 6-bit integer, of which float16 keeps 11 of 17 bits: the error is at most 2⁻⁹ steps
for the scale and, for a bias of b steps, b · 2⁻¹² steps. On a CPU, 5-bit weights become 8-bit ones,
as for other checkpoints (`checkpoint/repack.py`).
"""

import math
import os
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import numpy as np

from ... import kernels
from ...kernels.mxfp4 import e8m0_to_bfloat16
from ..checkpoint.quantization import Quantization, Shape
from .reader import GGUFTensor

CHUNK_WEIGHTS = 2**20  # per thread; keeps temporary arrays small
NUM_THREADS = min(8, os.cpu_count() or 1)

# Weights (one per byte if wider than 4 bits), scales and, if affine, biases.
Parts = tuple[np.ndarray, ...]

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
    is_mxfp4 = target.mode == "mxfp4"
    arrays = {
        name: mx.zeros(shape, mx.uint8 if is_mxfp4 and name == "scales" else dtype)
        for name, (shape, dtype) in array_types(tensor).items()
    }
    mx.eval(arrays)
    I = tensor.shape[-1]
    rows, row_bytes = math.prod(tensor.shape) // I, I // tensor.type.size * tensor.type.nbytes
    outputs = [np.array(array, copy=False).reshape(rows, -1) for array in arrays.values()]
    outputs[0] = outputs[0].view(np.uint8)
    step = max(1, CHUNK_WEIGHTS // I)

    def repack(first: int) -> None:
        last = min(first + step, rows)
        count, offset = (last - first) * row_bytes, tensor.offset + first * row_bytes
        blocks = np.fromfile(tensor.file, np.uint8, count, offset=offset)
        codes, *others = _unpack(tensor.type.name, blocks.reshape(-1, tensor.type.nbytes))
        parts = [_pack_5_bits(codes) if target.bits == 5 else codes, *others]
        for output, part in zip(outputs, parts, strict=True):
            output[first:last] = part.reshape(last - first, -1)

    with ThreadPoolExecutor(NUM_THREADS) as pool:
        list(pool.map(repack, range(0, rows, step)))
    if is_mxfp4 and has_cpu_kernels():
        arrays["scales"] = e8m0_to_bfloat16(arrays["scales"])
    return arrays


def _float16(blocks: np.ndarray, start: int) -> np.ndarray:
    return blocks[:, start : start + 2].copy().view(np.float16)


def _nibbles(codes: np.ndarray, run: int) -> np.ndarray:
    """Interleaves low and high nibbles; in GGUF, a run's low nibbles precede its high ones."""
    pairs = np.ascontiguousarray(codes).view("<u2")
    low, high = pairs & 0x0F | pairs >> 4 & 0xF0, pairs >> 4 & 0x0F | pairs >> 8 & 0xF0
    halves = (half.astype(np.uint8).reshape(-1, run // 2).view(np.uint64) for half in (low, high))
    return np.stack(tuple(halves), axis=1).view(np.uint8)


def _bytes(codes: np.ndarray, run: int, high_bits: np.ndarray) -> np.ndarray:
    """Combines a run's nibbles with higher bits, to one byte per weight."""
    low = np.ascontiguousarray(codes).reshape(-1, run)
    return np.stack((low & 0x0F, low >> 4), axis=1).reshape(-1, 32) | high_bits.reshape(-1, 32) << 4


def _pack_5_bits(codes: np.ndarray) -> np.ndarray:
    """Packs eight 5-bit integers into five bytes, lowest bits first."""
    shifted = codes.reshape(-1, 8).astype(np.uint64) << (5 * np.arange(8, dtype=np.uint64))
    words = np.bitwise_or.reduce(shifted, axis=1)
    return np.ascontiguousarray(words.view(np.uint8).reshape(-1, 8)[:, :5])


def _unpack(kind: str, blocks: np.ndarray) -> Parts:
    if kind == "MXFP4":
        return _nibbles(blocks[:, 1:], 16), blocks[:, :1]
    if kind == "Q4_K":
        return _nibbles(blocks[:, 16:], 32), *_k_scales(blocks)
    if kind == "Q5_K":
        planes = np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little")  # n×32×8
        return _bytes(blocks[:, 48:], 32, planes.swapaxes(1, 2)), *_k_scales(blocks)
    if kind == "Q6_K":
        return _q6_k(blocks)
    scales, bits = _float16(blocks, 0), BITS[kind[:2]]
    if kind.endswith("_0"):  # signed integers, without stored biases
        biases, codes = scales * np.float16(-(2 ** (bits - 1))), blocks[:, 2:]
    else:
        biases, codes = _float16(blocks, 2), blocks[:, 4:]
    if bits == 8:
        return codes ^ 0x80, scales, biases  # int8 + 128
    if bits == 4:
        return _nibbles(codes, 16), scales, biases
    high = np.unpackbits(codes[:, :4], axis=1, bitorder="little")
    return _bytes(codes[:, 4:], 16, high), scales, biases


def _k_scales(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scales and biases of the eight groups of a Q4_K or Q5_K block, n×8."""
    low, middle, high = (blocks[:, start : start + 4] for start in (4, 8, 12))
    scales = np.hstack((low & 63, high & 15 | low >> 2 & 48))
    minima = np.hstack((middle & 63, high >> 4 | middle >> 2 & 48))
    d, d_min = (_float16(blocks, start).astype(np.float32) for start in (0, 2))
    return (d * scales).astype(np.float16), (-d_min * minima).astype(np.float16)


def _q6_k(blocks: np.ndarray) -> Parts:
    """Merges two groups of 16 weights, q · scale with −32 ≤ q < 32, into one of 32.

    A quarter of the larger scale is the new step, so that the group with the larger scale stays
    exact, except for rounding to float16. The error of the other is at most an eighth of that
    scale. If the scales differ only in sign, the range needs 257 steps; 255 longer ones cover it.
    """
    planes = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> planes & 3
    codes = _bytes(blocks[:, :128], 64, high).reshape(-1, 8, 2, 16).astype(np.float32)
    d = _float16(blocks, 208).astype(np.float32)
    scales = (d * blocks[:, 192:208].view(np.int8)).reshape(-1, 8, 2)
    first, second = scales[..., 0], scales[..., 1]
    larger = np.where(abs(first) >= abs(second), first, second)
    steps = np.where(first == -second, larger * 64 / 255, larger / 4).astype(np.float16)
    codes -= 32
    codes *= (scales / np.where(steps == 0, 1, steps)[..., None])[..., None]
    codes += 128.5  # float to integer conversion truncates
    return codes.clip(0, 255, out=codes).astype(np.uint8), steps, steps * np.float16(-128)
