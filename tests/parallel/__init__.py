"""Tensor parallelism: numerical results, launchers, lost ranks."""
