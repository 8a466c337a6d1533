"""Generation for one prompt: from token ids to text, one token at a time.

    loops         which token comes next: by recomputing everything, or with a cache
    speculative   the same with a draft model that guesses ahead
    stream        turns tokens into text, and decides when to stop

A loop knows the model and the sampler; `stream` knows the tokenizer. Weeks 2 and 3 add faster
loops; `stream` stays the same.
"""

from .loops import (
    decode_by_recomputing,
    decode_with_cache,
    next_token_logits,
    simple_generate,
    simple_generate_with_kv_cache,
    speculative_generate,
)
from .speculative import SpeculationStatistics, SpeculativeDecoding, check_same_vocabulary
from .stream import (
    DecodingLoop,
    GenerationResponse,
    encode_prompt,
    read_tokens,
    stream_generate,
    stream_text,
    token_budget,
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
    "simple_generate",
    "simple_generate_with_kv_cache",
    "speculative_generate",
    "stream_generate",
    "stream_text",
    "token_budget",
]
