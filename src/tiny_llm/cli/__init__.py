"""Command-line interface: one module per command.

Reading order: main, chat, batch, serve, served_models, bench, models, check_installation,
memory_table, entrypoint, parsing, backends, batching.
"""
