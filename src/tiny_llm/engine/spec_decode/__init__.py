"""Speculative decoding: draft token proposers and verification.

Must not know how the target runs and samples: see `model_runner.py`.

Reading order: verification, draft_model, mtp_drafter, ngram_proposer, grammar_proposer.
"""
