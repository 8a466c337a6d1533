"""Benchmarks and their helpers. `tiny_llm` must not import this package."""
