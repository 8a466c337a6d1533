"""Heads other than the LM head: embeddings, relevance scores, MTP.

This package must not depend on the engine's requests.

Reading order: pooling, mtp.
"""
