"""Constrained decoding: grammars, grammar compilation and token bitmasks.

Must not know about models.

Reading order: json_schema, grammar, grammar_errors, relaxation, tokenizer, compile_handler,
compiler, bitmask, thinking_budget, validator, validator_handler.
"""
