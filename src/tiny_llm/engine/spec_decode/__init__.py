"""Speculative decoding: draft token proposers and verification.

Must not know how the target samples: `model_runner.py` does that.

Reading order: verification, draft_model, mtp_drafter, proposer, ngram_proposer, grammar_proposer.
"""
