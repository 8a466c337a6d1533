"""Tool-call formats: each model family's syntax, as a parser and a grammar.

Plain Python without MLX. This package must not depend on requests, grammar libraries or protocols.

Reading order: json_scanner, text_source, tool_schema, format, json_calls, formats, registry.
"""
