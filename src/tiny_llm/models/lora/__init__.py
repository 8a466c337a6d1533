"""LoRA adapters: low-rank updates to linear layers, selected per request.

This package must not depend on the engine's requests or the base model's files.

Reading order: adapter_config, adapter, attach.
"""

from .attach import attach_adapters

__all__ = ["attach_adapters"]
