"""Benchmark calculations, workers and HTTP clients."""
