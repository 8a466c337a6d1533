"""Backends: from command-line flags to streaming generation for one prompt.

Must not depend on how output is displayed.

Reading order: checkpoint, engine, backend, remote.
"""
