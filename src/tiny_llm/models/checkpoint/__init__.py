"""Checkpoint files: bounded reads, validation, weights and their formats.

Independent of how a model computes.

Reading order: safe_io, layout, config_checks, tokenizer_config, safetensors_header,
tensor_shapes, quantization, weights, repack, nan_check, dummy, sharding.
"""
