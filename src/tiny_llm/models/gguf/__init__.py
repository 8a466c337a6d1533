"""GGUF files: llama.cpp's format, which LM Studio and Ollama store models in.

Quantized blocks are repacked to MLX's formats while they are read; no converted copy is written.

Reading order: reader, blocks, config, weights, tokenizer.
"""
