"""Generation for a single prompt: decoding loops and text streaming.

`week_models` selects the model. Decoding loops depend on the model and the sampler, `stream` on the
tokenizer. Weeks 2 and 3 add faster loops without changing `stream`.

Reading order: week_models, loops, speculative, stream.
"""

from ..engine.spec_decode.draft_tokens import SpeculationStatistics
from .loops import (
    decode_by_recomputing,
    decode_with_cache,
    next_token_logits,
    simple_generate,
    simple_generate_with_kv_cache,
    speculative_generate,
)
from .speculative import SpeculativeDecoding
from .stream import (
    DecodingLoop,
    GenerationResponse,
    read_tokens,
    resolve_max_tokens,
    stream_generate,
    tokenize_prompt,
)
from .week_models import WEEK_MODELS, dispatch_model

__all__ = [
    "WEEK_MODELS",
    "DecodingLoop",
    "GenerationResponse",
    "SpeculationStatistics",
    "SpeculativeDecoding",
    "decode_by_recomputing",
    "decode_with_cache",
    "dispatch_model",
    "next_token_logits",
    "read_tokens",
    "resolve_max_tokens",
    "simple_generate",
    "simple_generate_with_kv_cache",
    "speculative_generate",
    "stream_generate",
    "tokenize_prompt",
]
