"""Folders and arguments that are wrong, or meant to do harm: each is answered in one sentence."""
