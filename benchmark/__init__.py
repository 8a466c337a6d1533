"""Benchmarks and their shared helpers. The package must not import them."""
