"""Loading, tokenizers, model families; parity with mlx_lm and transformers."""
