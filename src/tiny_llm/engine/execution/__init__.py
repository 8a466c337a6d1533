"""Model execution: ragged batches to logits, logits to tokens.

This package must not depend on request queues or text.

Reading order: exclusive_use, kv_memory, paged_model, tp_model, sampler, disk_tier.
"""
