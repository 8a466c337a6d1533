"""Corpus: chats from tables and templates, deterministic per seed."""
