"""Loading, tokenizers and model families; parity with mlx_lm and transformers."""
