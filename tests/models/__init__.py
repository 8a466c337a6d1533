"""Loading, tokenizers and families; parity with mlx_lm and transformers."""
