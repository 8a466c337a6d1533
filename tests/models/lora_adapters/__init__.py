"""LoRA adapters: files and parity with mlx_lm."""
