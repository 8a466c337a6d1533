"""Heads other than the LM head: embeddings, relevance scores, MTP.

Must not know about requests.

Reading order: pooling, mtp.
"""
