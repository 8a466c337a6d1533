"""tiny-llm: Qwen3 on MLX, from matrix multiplication to a serving engine.

All public names can be imported from here. The modules, in course order:

    basics, attention, positional_encoding, layer_norm, embedding   building blocks (Week 1)
    qwen3_week1, generate, sampler                                  text generation (Week 1)
    kv_cache, quantize, qwen3_week2, batch                          a tiny vLLM (Week 2)
    kv_cache, attention.paged, qwen3_week3, engine                  paging and scheduling (Week 3)
    agent                                                           tool calls in a loop (Week 7)

The engine, which imports none of the course's modules: `kernels` (bindings of the C++ extension,
optimized in Week 4), `kv_storage`, `models` (checkpoints by name), `engine`, `server` (HTTP). Both
use the building blocks, `quantize`, `sampling_ops`, `demo` (bundled models) and `errors`; `cli`
(commands) runs both.

Reading order: errors, demo, basics, positional_encoding, layer_norm, embedding, attention,
quantize, sampling_ops, sampler, qwen3_week1, kv_cache, paged_kv_cache, qwen3_week2, qwen3_week3,
generate, batch, kernels, kv_storage, models, engine, server, cli, agent.
"""

from typing import TYPE_CHECKING

from . import models
from .attention import (
    SimpleMultiHeadAttention,
    causal_mask,
    flash_attention,
    paged_attention,
    paged_attention_varlen,
    scaled_dot_product_attention_grouped,
    scaled_dot_product_attention_simple,
)
from .basics import linear, silu, softmax
from .batch import Request, batch_generate
from .embedding import Embedding
from .errors import UserError
from .generate import (
    GenerationResponse,
    SpeculationStatistics,
    SpeculativeDecoding,
    decode_by_recomputing,
    decode_with_cache,
    dispatch_model,
    simple_generate,
    simple_generate_with_kv_cache,
    speculative_generate,
    stream_generate,
)
from .kv_cache import (
    BatchingKvCache,
    OutOfPagesError,
    PagedKvMetadata,
    TinyKvCache,
    TinyKvFullCache,
    TinyKvPagedCache,
    TinyKvPagedPool,
)
from .kv_storage import PagedStorage, RaggedBatch
from .layer_norm import RMSNorm
from .models import ModelError, load, load_weights, shortcut_name_to_full_name
from .positional_encoding import RoPE
from .quantize import (
    QuantizedEmbedding,
    QuantizedWeights,
    dequantize_linear,
    quantized_linear,
    quantized_matmul,
)
from .qwen3_week1 import Qwen3MLP, Qwen3ModelWeek1, Qwen3MultiHeadAttention, Qwen3TransformerBlock
from .qwen3_week2 import Qwen3ModelWeek2
from .qwen3_week3 import Qwen3ModelWeek3
from .sampler import DistributionSampler, make_sampler

if TYPE_CHECKING:
    from .engine.inputs.sampling_params import SamplingParams, StructuredOutputs, ToolCalls
    from .engine.llm import LLM
    from .engine.scheduling.request import (
        CompletionOutput,
        RequestMetrics,
        RequestOutput,
        StreamOutput,
    )
else:

    def __getattr__(name: str) -> object:
        """Imports the engine's public names on first use."""
        if name in __all__:
            from .engine import llm
            from .engine.inputs import sampling_params
            from .engine.scheduling import request

            for module in (llm, request, sampling_params):
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(f"module 'tiny_llm' has no attribute '{name}'")


__version__ = "0.1.0"

# Keeps `from tiny_llm.models import dispatch_model` working; `models` must not import the course.
models.dispatch_model = dispatch_model  # type: ignore[attr-defined]

__all__ = [
    "LLM",
    "BatchingKvCache",
    "CompletionOutput",
    "DistributionSampler",
    "Embedding",
    "GenerationResponse",
    "ModelError",
    "OutOfPagesError",
    "PagedKvMetadata",
    "PagedStorage",
    "QuantizedEmbedding",
    "QuantizedWeights",
    "Qwen3MLP",
    "Qwen3ModelWeek1",
    "Qwen3ModelWeek2",
    "Qwen3ModelWeek3",
    "Qwen3MultiHeadAttention",
    "Qwen3TransformerBlock",
    "RMSNorm",
    "RaggedBatch",
    "Request",
    "RequestMetrics",
    "RequestOutput",
    "RoPE",
    "SamplingParams",
    "SimpleMultiHeadAttention",
    "SpeculationStatistics",
    "SpeculativeDecoding",
    "StreamOutput",
    "StructuredOutputs",
    "TinyKvCache",
    "TinyKvFullCache",
    "TinyKvPagedCache",
    "TinyKvPagedPool",
    "ToolCalls",
    "UserError",
    "batch_generate",
    "causal_mask",
    "decode_by_recomputing",
    "decode_with_cache",
    "dequantize_linear",
    "dispatch_model",
    "flash_attention",
    "linear",
    "load",
    "load_weights",
    "make_sampler",
    "paged_attention",
    "paged_attention_varlen",
    "quantized_linear",
    "quantized_matmul",
    "scaled_dot_product_attention_grouped",
    "scaled_dot_product_attention_simple",
    "shortcut_name_to_full_name",
    "silu",
    "simple_generate",
    "simple_generate_with_kv_cache",
    "softmax",
    "speculative_generate",
    "stream_generate",
]
