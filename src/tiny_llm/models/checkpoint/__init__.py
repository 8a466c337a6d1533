"""Checkpoint files: reads, validation, weights and their formats.

This package must not depend on model execution.

Reading order: safe_io, layout, tokenizer_config, tensor_shapes, weights, dummy, sharding.
"""
