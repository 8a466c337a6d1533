"""Loading, tokenizers, families; parity with mlx_lm and transformers."""
