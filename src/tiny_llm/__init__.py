"""tiny-llm: Qwen3 on MLX, from matrix multiplication to a serving engine.

Everything public is importable from here; the files behind it are meant to be read in the order
of the imports below.
"""

from .attention import (
    SimpleMultiHeadAttention,
    causal_mask,
    scaled_dot_product_attention_grouped,
    scaled_dot_product_attention_simple,
)
from .basics import linear, silu, softmax
from .checkpoint import ModelError
from .embedding import Embedding
from .errors import UserError
from .generate import GenerationResponse, simple_generate, simple_stream
from .layer_norm import RMSNorm
from .models import dispatch_model, load, shortcut_name_to_full_name
from .positional_encoding import RoPE
from .quantize import dequantize_linear
from .qwen3_week1 import (
    Qwen3MLP,
    Qwen3ModelWeek1,
    Qwen3MultiHeadAttention,
    Qwen3TransformerBlock,
)
from .sampler import make_sampler

__version__ = "0.1.0"

__all__ = [
    "Embedding",
    "GenerationResponse",
    "ModelError",
    "Qwen3MLP",
    "Qwen3ModelWeek1",
    "Qwen3MultiHeadAttention",
    "Qwen3TransformerBlock",
    "RMSNorm",
    "RoPE",
    "SimpleMultiHeadAttention",
    "UserError",
    "causal_mask",
    "dequantize_linear",
    "dispatch_model",
    "linear",
    "load",
    "make_sampler",
    "scaled_dot_product_attention_grouped",
    "scaled_dot_product_attention_simple",
    "shortcut_name_to_full_name",
    "silu",
    "simple_generate",
    "simple_stream",
    "softmax",
]
