"""Model loading by name, and the models of the course's weeks and the engine.

This package must not generate text: `generate`, `batch` and `engine` run the models built here.

Reading order: hub, loading, dispatch, heads, memory, model_size, checkpoint, gguf, tokenizer,
families, lora, parallel.
"""

from .checkpoint.safe_io import ModelError
from .dispatch import (
    WEEK_MODELS,
    ServingModel,
    check_has_mtp,
    dispatch_model,
    mtp_model,
    serving_model,
)
from .families.attention_backends import ATTENTION_BACKENDS
from .families.linear import ACTIVATION_BITS
from .hub import (
    BUNDLED_MODELS,
    SHORT_NAMES,
    default_model,
    find_in_cache,
    find_model,
    shortcut_name_to_full_name,
)
from .loading import LOAD_FORMATS, load, load_weights

__all__ = [
    "ACTIVATION_BITS",
    "ATTENTION_BACKENDS",
    "BUNDLED_MODELS",
    "LOAD_FORMATS",
    "SHORT_NAMES",
    "WEEK_MODELS",
    "ModelError",
    "ServingModel",
    "check_has_mtp",
    "default_model",
    "dispatch_model",
    "find_in_cache",
    "find_model",
    "load",
    "load_weights",
    "mtp_model",
    "serving_model",
    "shortcut_name_to_full_name",
]
