"""Backends for streaming generation, configured by the flags.

This package must not depend on how output is displayed.

Reading order: local, remote.
"""
