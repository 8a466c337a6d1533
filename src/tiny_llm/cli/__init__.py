"""Command-line interface: one module per command.

Reading order: main, chat, batch, serve, bench, models, check_installation,
memory_table, decode_speed, entrypoint, parsing, backends, batching.
"""
