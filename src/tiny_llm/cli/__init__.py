"""Command-line interface: one module per command.

Reading order: main, chat, batch, serve, bench, models, check_installation,
entrypoint, parsing, memory_table, open_loop, backends.
"""
