"""Checkpoint files: bounded reads, validation, weights and their formats.

Must not know how a model runs.

Reading order: safe_io, layout, config_checks, tokenizer_config, safetensors_header,
tensor_shapes, quantization, weights, repack, nan_check, dummy, sharding.
"""
