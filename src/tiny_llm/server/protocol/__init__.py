"""Code shared by all protocols: prompts, sampling, log-probabilities, streaming.

This package must not depend on any single protocol's schema.

Reading order: prompts, request_fields, logprobs, streaming.
"""
