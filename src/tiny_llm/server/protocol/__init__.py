"""Code shared by all protocols: prompts, sampling, output parsing, streaming.

This package must not depend on any single protocol's schema.

Reading order: prompts, base_schema, request_fields, tool_calls, output_parser, harmony_parser,
logprobs, streaming.
"""
