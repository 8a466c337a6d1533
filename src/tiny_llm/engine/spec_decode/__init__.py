"""Draft token proposers for speculative decoding.

Must not know how draft tokens are verified: `model_runner.py` does that.

Reading order: draft_model, proposer, ngram_proposer, grammar_proposer.
"""
