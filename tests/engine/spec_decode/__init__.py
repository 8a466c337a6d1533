"""Speculative decoding: draft token proposers and verification."""
