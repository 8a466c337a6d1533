"""The commands, a thin module each, on top of the package's public names.

Reading order: main, chat, batch, serve, bench, check_installation, entrypoint, parsing, backends,
batching.
"""
