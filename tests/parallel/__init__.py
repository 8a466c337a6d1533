"""Tensor parallelism on two ranks, and lost ranks."""
