"""Backends: from command-line flags to streaming generation for one prompt.

Independent of how output is displayed.

Reading order: checkpoint, engine, backend, remote.
"""
