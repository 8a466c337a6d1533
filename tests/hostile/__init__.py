"""Malformed checkpoints and arguments: one-sentence errors."""
