"""MLX's affine quantization in PyTorch, bit for bit, for quantization-aware training.

Of each group of 128 weights in a row, the end that is larger in absolute value becomes exactly a
multiple of the scale; the bias is that end. Scales and biases are stored in bfloat16.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP_SIZE = 128
BITS = 4
LEVELS = 2**BITS - 1
SMALLEST_SCALE = 1e-7


def fake_quantize(weight: Tensor) -> Tensor:
    """Quantize and dequantize. weight: O x I, I a multiple of 128 -> bfloat16, O x I."""
    groups = weight.bfloat16().float().view(-1, GROUP_SIZE)
    low = groups.amin(dim=1, keepdim=True)
    high = groups.amax(dim=1, keepdim=True)
    low_is_larger = low.abs() > high.abs()
    scale = ((high - low) / LEVELS).clamp_min(SMALLEST_SCALE)
    scale = torch.where(low_is_larger, scale, -scale)
    edge = torch.where(low_is_larger, low, high)
    steps = torch.round(edge / scale)
    scale = torch.where(steps == 0, scale, edge / steps)
    bias = torch.where(steps == 0, torch.zeros_like(edge), edge)
    levels = torch.round((groups - bias) / scale).clamp_(0, LEVELS)
    # bfloat16 from here on, as `mx.dequantize` does it: the product is rounded, then the sum.
    return (levels.bfloat16() * scale.bfloat16() + bias.bfloat16()).view_as(weight)
