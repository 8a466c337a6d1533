"""Served models: selection, loading on demand, requests, chat generation.

This package must not depend on any single protocol's schema.

Reading order: requests, model_registry, served_model.
"""
