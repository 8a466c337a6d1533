"""Weights and their quantization formats."""
