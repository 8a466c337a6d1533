"""Shared by all protocols: prompts, sampling, output parsing, streaming.

Must not know any single protocol's schema.

Reading order: prompts, bounded_types, sampling, reasoning_effort, tool_calls, output_parser,
output, logprobs, usage, streaming, disconnect, prefix_warmup.
"""
