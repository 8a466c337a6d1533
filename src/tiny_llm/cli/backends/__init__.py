"""Backends: streaming generation for one prompt, built from the flags.

Independent of how output is displayed.

Reading order: checkpoint, engine, backend, openai_client, remote.
"""
