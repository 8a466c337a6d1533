"""MLX's affine quantization in PyTorch, for quantization-aware training.

Bit-identical to MLX. In each group of 128 weights of a row, the extreme (minimum or maximum) with
the larger magnitude is the bias, and the scale is adjusted to divide the bias exactly.
Both are stored in bfloat16.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP_SIZE = 128
BITS = 4
LEVELS = 2**BITS - 1
MIN_SCALE = 1e-7


def fake_quantize(weight: Tensor) -> Tensor:
    """Quantizes and dequantizes. weight: O x I, I a multiple of 128, or flattened -> bfloat16."""
    groups = weight.bfloat16().float().view(-1, GROUP_SIZE)
    low = groups.amin(dim=1, keepdim=True)
    high = groups.amax(dim=1, keepdim=True)
    low_is_larger = low.abs() > high.abs()
    scale = ((high - low) / LEVELS).clamp_min(MIN_SCALE)
    scale = torch.where(low_is_larger, scale, -scale)
    edge = torch.where(low_is_larger, low, high)
    steps = torch.round(edge / scale)
    scale = torch.where(steps == 0, scale, edge / steps)
    bias = torch.where(steps == 0, torch.zeros_like(edge), edge)
    levels = torch.round((groups - bias) / scale).clamp_(0, LEVELS)
    # Like `mx.dequantize`, rounds the product and then the sum to bfloat16.
    return (levels.bfloat16() * scale.bfloat16() + bias.bfloat16()).view_as(weight)
