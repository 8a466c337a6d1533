"""Week 2's Qwen3: KV cache and quantized weights.

Written twice on purpose: `models/families/decoder.py` has the engine's layers, for all families.

A call computes only the new tokens and appends their keys and values to the cache. Weights keep
the checkpoint's format and are multiplied without dequantization. Norms, RoPE and SwiGLU are
computed as in Week 1, but each as one operation in the extension. This saves time because a decode
step has hundreds of operations on a few kilobytes, which take MLX longer to schedule than to
compute.

Reading order: weights, attention, captured, model.
"""

from .attention import AttentionFn, Qwen3MultiHeadAttention, attend_flash, attend_grouped
from .model import Qwen3MLP, Qwen3ModelWeek2, Qwen3TransformerBlock

__all__ = [
    "AttentionFn",
    "Qwen3MLP",
    "Qwen3ModelWeek2",
    "Qwen3MultiHeadAttention",
    "Qwen3TransformerBlock",
    "attend_flash",
    "attend_grouped",
]
