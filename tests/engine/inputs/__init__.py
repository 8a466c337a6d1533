"""Prompts, chat messages and sampling parameters."""
