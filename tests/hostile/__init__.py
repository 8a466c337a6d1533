"""Malformed folders and arguments: one sentence each."""
