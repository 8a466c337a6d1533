"""Malformed checkpoints, rejected with one-sentence errors."""
