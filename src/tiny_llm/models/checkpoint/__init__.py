"""Checkpoint files: bounded reads, validation, weights and their formats.

Must not know about model execution.

Reading order: safe_io, layout, config_checks, tokenizer_config, safetensors_header,
tensor_shapes, quantization, weights, repack, nan_check, dummy, sharding.
"""
