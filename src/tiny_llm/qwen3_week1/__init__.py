"""Week 1's Qwen3: the complete model in plain array operations.

Stateless: every call recomputes the complete sequence. Weights are plain bfloat16 matrices,
dequantized when the model is built. Week 2 adds the KV cache and quantized weights.

Reading order: attention, mlp, model.
"""

from .attention import Qwen3MultiHeadAttention
from .mlp import Qwen3MLP
from .model import Qwen3ModelWeek1, Qwen3TransformerBlock

__all__ = ["Qwen3MLP", "Qwen3ModelWeek1", "Qwen3MultiHeadAttention", "Qwen3TransformerBlock"]
