"""Estimates for `check --model`: a model's memory and decoding speed on this machine.

Reading order: memory_table, decode_speed.
"""
