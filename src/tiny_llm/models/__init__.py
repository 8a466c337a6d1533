"""Models by name: from a name to a model that a week's code or the engine can run.

    names          short names, hub ids and folders; downloads
    files          what a checkpoint's folder must hold, checked before anything is loaded
    families       what a config.json says of a model, and the decoder that runs every family
    formats        how a matrix may be quantized
    tensor_shapes  the shapes of a model's tensors
    weights        its tensors as a tree of layers
    repack         quantized weights in a form that the CPU's kernels read
    loading        all of that: `load`, `load_weights`
    dispatch       a model from loaded weights: `dispatch_model` for a week, `serving_model`
    costs          what a token costs a model, in bytes and operations

    tokenizer, detokenizer, chat_template   text into tokens and back

Nothing here generates text: a model is built here, and run by `generate`, `batch` and `engine`.
"""

from .dispatch import WEEK_MODELS, dispatch_model, serving_model
from .families.attention_backends import ATTENTION_BACKENDS
from .folder import ModelError
from .loading import LOAD_FORMATS, load, load_weights
from .names import (
    SHIPPED,
    SHORTCUTS,
    default_model,
    find_in_cache,
    find_model,
    shortcut_name_to_full_name,
)

__all__ = [
    "ATTENTION_BACKENDS",
    "LOAD_FORMATS",
    "SHIPPED",
    "SHORTCUTS",
    "WEEK_MODELS",
    "ModelError",
    "default_model",
    "dispatch_model",
    "find_in_cache",
    "find_model",
    "load",
    "load_weights",
    "serving_model",
    "shortcut_name_to_full_name",
]
