"""Command-line interface: one thin module per command.

Reading order: main, chat, batch, serve, bench, check_installation, entrypoint, parsing, backends,
batching.
"""
