"""Shared by all protocols: prompts, sampling, output parsing, streaming.

Must not know any single protocol's schema.

Reading order: prompts, sampling, reasoning_effort, output_parser, partial_json, output,
logprobs, usage, streaming, disconnect, prefix_warmup.
"""
