"""Speculative decoding: draft token proposers and verification.

This package must not depend on `model_runner.py`, which runs the target and samples from it.

Reading order: verification, draft_model, ngram_proposer, grammar_proposer.
"""
