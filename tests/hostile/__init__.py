"""Malformed checkpoints and arguments, rejected with one-sentence errors."""
