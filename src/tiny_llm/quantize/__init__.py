"""Quantized weights: format, matrix multiplication, dequantization.

Each row of a weight matrix is divided into groups with one scale and one bias each, and each
weight is stored as a small integer q: weight = q · scale + bias. A uint32 packs eight 4-bit
integers, lowest bits first. With 4 bits and groups of 128, a weight takes 4.25 bits instead of
bfloat16's 16. Decoding reads every weight for every token, so it becomes almost four times as fast.

Reading order: dequantize, weights.
"""

from .dequantize import dequantize_linear
from .weights import (
    QuantizedEmbedding,
    QuantizedWeights,
    check_supported,
    project,
    project_each,
    quantized_linear,
    quantized_matmul,
)

__all__ = [
    "QuantizedEmbedding",
    "QuantizedWeights",
    "check_supported",
    "dequantize_linear",
    "project",
    "project_each",
    "quantized_linear",
    "quantized_matmul",
]
