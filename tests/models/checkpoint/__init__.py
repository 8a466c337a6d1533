"""Weights and their formats."""
