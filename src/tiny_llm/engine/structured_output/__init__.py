"""Constrained decoding: grammars, grammar compilation and token bitmasks.

This package must not depend on model execution.

Reading order: grammar, relaxation, sandbox, compiler, bitmask, thinking_budget.
"""
