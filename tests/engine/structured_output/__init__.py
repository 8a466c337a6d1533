"""Constrained decoding."""
