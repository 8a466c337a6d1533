"""LoRA adapters: files, parity with mlx_lm, attaching."""
