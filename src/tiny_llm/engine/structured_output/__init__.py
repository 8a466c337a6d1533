"""Constrained decoding: grammars, their compilation and token bitmasks.

Must not know about models.

Reading order: json_schema, grammar, compile_probe, compiler, bitmask, thinking_budget.
"""
