"""Tensor parallelism: numerical results, features, launchers, lost ranks."""
