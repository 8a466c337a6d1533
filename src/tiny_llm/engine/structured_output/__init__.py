"""Constrained decoding: grammars, grammar compilation and token bitmasks.

This package must not depend on model execution.

Reading order: sandboxed_process, sandbox_handlers, grammar, relaxation, compiler, bitmask,
thinking_budget.
"""
