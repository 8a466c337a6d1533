"""Attention, from a single head to a paged KV cache.

Pure functions of arrays; `kv_cache` (course) and `kv_storage` (engine) store keys and values.

Reading order: dense, flash, gathered, paged, gated_delta.
"""

from .dense import (
    Mask,
    SimpleMultiHeadAttention,
    causal_mask,
    is_custom_mask,
    scaled_dot_product_attention_grouped,
    scaled_dot_product_attention_simple,
)
from .flash import flash_attention
from .gated_delta import (
    causal_conv1d_reference,
    gated_delta_rule_reference,
    gated_rms_norm_reference,
)
from .gathered import gather_pages
from .paged import (
    paged_attention,
    paged_attention_reference,
    paged_attention_varlen,
    paged_attention_varlen_reference,
    sliding_window_mask,
)

__all__ = [
    "Mask",
    "SimpleMultiHeadAttention",
    "causal_conv1d_reference",
    "causal_mask",
    "flash_attention",
    "gated_delta_rule_reference",
    "gated_rms_norm_reference",
    "gather_pages",
    "is_custom_mask",
    "paged_attention",
    "paged_attention_reference",
    "paged_attention_varlen",
    "paged_attention_varlen_reference",
    "scaled_dot_product_attention_grouped",
    "scaled_dot_product_attention_simple",
    "sliding_window_mask",
]
