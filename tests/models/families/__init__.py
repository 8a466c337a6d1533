"""Model families against mlx_lm and transformers."""
