"""Checkpoint files: reads, validation, weights and their formats.

This package must not depend on model execution.

Reading order: safe_io, layout, config_checks, tokenizer_config, safetensors_header,
tensor_shapes, quantization, weights, repack, dummy, sharding.
"""
