"""Tensor parallelism: results, launchers, lost ranks."""
