"""Speculative decoding: draft token proposers and verification.

This package must not depend on `model_runner.py`, which runs the target and samples from it.

Reading order: draft_tokens, draft_model.
"""
