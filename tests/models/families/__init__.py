"""Model families, compared with mlx_lm and transformers."""
