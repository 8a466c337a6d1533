"""Backends for streaming generation and for batches, configured by the flags.

This package must not depend on how output is displayed.

Reading order: local, remote, batch_runs.
"""
