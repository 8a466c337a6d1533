"""Constrained decoding: grammars, JSON schemas, thinking budgets."""
