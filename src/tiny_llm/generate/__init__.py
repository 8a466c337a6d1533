"""Generation for a single prompt: decoding loops and text streaming.

Decoding loops depend on the model and the sampler, `stream` on the tokenizer. Weeks 2 and 3 add
faster loops without changing `stream`.

Reading order: loops, speculative, draft_tokenizer, stream.
"""

from .draft_tokenizer import check_same_vocabulary
from .loops import (
    decode_by_recomputing,
    decode_with_cache,
    next_token_logits,
    simple_generate,
    simple_generate_with_kv_cache,
    speculative_generate,
)
from .speculative import SpeculationStatistics, SpeculativeDecoding
from .stream import (
    DecodingLoop,
    GenerationResponse,
    encode_prompt,
    read_tokens,
    resolve_max_tokens,
    stream_generate,
)

__all__ = [
    "DecodingLoop",
    "GenerationResponse",
    "SpeculationStatistics",
    "SpeculativeDecoding",
    "check_same_vocabulary",
    "decode_by_recomputing",
    "decode_with_cache",
    "encode_prompt",
    "next_token_logits",
    "read_tokens",
    "resolve_max_tokens",
    "simple_generate",
    "simple_generate_with_kv_cache",
    "speculative_generate",
    "stream_generate",
]
