"""Model loading by name, and the engine's models: one decoder for all families.

This package must not generate text: `engine` runs the models built here. The course's models are in
`qwen3_week1` to `qwen3_week3`.

Reading order: hub, loading, output_heads, memory, checkpoint, gguf, tokenizer, families,
lora_adapters, parallel.
"""

from .checkpoint.safe_io import ModelError
from .families.attention_backends import ATTENTION_BACKENDS
from .hub import (
    BUNDLED_MODELS,
    SHORT_NAMES,
    default_model,
    find_in_cache,
    find_model,
    shortcut_name_to_full_name,
)
from .loading import check_has_mtp, load, load_weights, mtp_model, serving_model

__all__ = [
    "ATTENTION_BACKENDS",
    "BUNDLED_MODELS",
    "SHORT_NAMES",
    "ModelError",
    "check_has_mtp",
    "default_model",
    "find_in_cache",
    "find_model",
    "load",
    "load_weights",
    "mtp_model",
    "serving_model",
    "shortcut_name_to_full_name",
]
