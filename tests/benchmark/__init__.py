"""Benchmark calculations."""
