"""From command-line flags to a backend that answers one prompt at a time.

Must not know how output is displayed.

Reading order: checkpoint, engine, backend, remote.
"""
