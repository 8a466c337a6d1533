"""Tool-call formats: each model family's syntax, as a parser and a grammar.

Plain Python without MLX. This package must not depend on requests, grammar libraries or protocols.

Reading order: format, tool_schema, json_scanner, json_calls, qwen3_coder, gemma4, harmony,
registry.
"""
