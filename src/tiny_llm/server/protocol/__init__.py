"""Code shared by all protocols: prompts, sampling, log-probabilities, streaming.

This package must not depend on any single protocol's schema.

Reading order: prompts, base_schema, request_fields, logprobs, streaming.
"""
